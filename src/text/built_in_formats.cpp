#include "src/text/built_in_formats.h"

#include <algorithm>

namespace computron {
namespace {

using namespace std::chrono_literals;

// meta-llama/Llama-2-7b-chat-hf.
constexpr std::string_view kLlama2 = R"(
{%- set system = '' -%}
{%- set turns = messages -%}
{%- if messages[0].role == 'system' -%}
  {%- set system = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' -%}
  {%- set turns = messages[1:] -%}
{%- endif -%}
{%- for message in turns -%}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
    {{- raise_exception('after an optional system message user and assistant take turns') -}}
  {%- endif -%}
  {%- if message.role == 'user' -%}
    {{- bos_token + '[INST] ' + ((system if loop.first else '') + message.content) | trim + ' [/INST]' -}}
  {%- elif message.role == 'system' -%}
    {{- raise_exception('the first message alone can be the system') -}}
  {%- else -%}
    {{- ' ' + message.content | trim + ' ' + eos_token -}}
  {%- endif -%}
{%- endfor -%}
)";

// meta-llama/Meta-Llama-3-8B-Instruct.
constexpr std::string_view kLlama3 = R"(
{{- bos_token -}}
{%- for message in messages -%}
  {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
{%- endif -%}
)";

// meta-llama/Llama-3.1-8B-Instruct, 3.2 and 3.3: the day stands in front of the system's words.
constexpr std::string_view kLlama31 = R"(
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n' -}}
{{- 'Today Date: ' + strftime_now('%d %b %Y') + '\n\n' -}}
{%- set turns = messages -%}
{%- if messages[0].role == 'system' -%}
  {{- messages[0].content | trim -}}
  {%- set turns = messages[1:] -%}
{%- endif -%}
{{- '<|eot_id|>' -}}
{%- for message in turns -%}
  {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
{%- endif -%}
)";

constexpr std::string_view kChatMl = R"(
{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n' -}}
{%- endif -%}
)";

// Qwen/Qwen2-7B-Instruct and Qwen/Qwen2.5-7B-Instruct, which introduce themselves where nobody does it for them.
constexpr std::string_view kQwen2 = R"(
{%- if messages[0].role != 'system' -%}
  {{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n' -}}
{%- endif -%}
)";
constexpr std::string_view kQwen25 = R"(
{%- if messages[0].role != 'system' -%}
  {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n' -}}
{%- endif -%}
)";

// Qwen/Qwen3-0.6B: earlier answers lose their thoughts; those behind the last question keep them.
constexpr std::string_view kQwen3 = R"(
{%- set ns = namespace(last=messages | length - 1, found=false) -%}
{%- for message in messages[::-1] -%}
  {%- if not ns.found and message.role == 'user' -%}
    {%- set ns.found = true -%}
    {%- set ns.last = messages | length - loop.index -%}
  {%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
  {%- if message.role == 'assistant' -%}
    {%- set answer = message.content -%}
    {%- set thoughts = '' -%}
    {%- if message.reasoning_content is defined -%}
      {%- set thoughts = message.reasoning_content -%}
    {%- elif '</think>' in answer -%}
      {%- set thoughts = answer.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -%}
      {%- set answer = answer.split('</think>')[-1].lstrip('\n') -%}
    {%- endif -%}
    {{- '<|im_start|>assistant\n' -}}
    {%- if loop.index0 > ns.last and (loop.last or thoughts) -%}
      {{- '<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' + answer.lstrip('\n') + '<|im_end|>\n' -}}
    {%- else -%}
      {{- answer + '<|im_end|>\n' -}}
    {%- endif -%}
  {%- else -%}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n' -}}
  {%- if enable_thinking is defined and enable_thinking is false -%}
    {{- '<think>\n\n</think>\n\n' -}}
  {%- endif -%}
{%- endif -%}
)";

// mistralai's: one conversation, and in every version other spaces in it. v1: Mixtral 8x7B and Mistral 7B v0.2; v3:
// Mistral 7B v0.3 and Mixtral 8x22B v0.3; v3-tekken: Nemo and Ministral; v7-tekken: Mistral Small 3, whose own words
// for the system are left to whoever asks.
constexpr std::string_view kMistral1 =
    "{%- set begin, end, space, trims, system_turn = ' [INST] ', ' [/INST]', ' ', false, 'first' -%}";
constexpr std::string_view kMistral3 =
    "{%- set begin, end, space, trims, system_turn = '[INST] ', '[/INST]', ' ', true, 'last' -%}";
constexpr std::string_view kMistral3Tekken =
    "{%- set begin, end, space, trims, system_turn = '[INST]', '[/INST]', '', false, 'last' -%}";
constexpr std::string_view kMistral7Tekken =
    "{%- set begin, end, space, trims, system_turn = '[INST]', '[/INST]', '', false, 'own' -%}";
constexpr std::string_view kMistral = R"(
{{- bos_token -}}
{%- set system = '' -%}
{%- set turns = messages -%}
{%- if messages[0].role == 'system' -%}
  {%- set turns = messages[1:] -%}
  {%- if system_turn == 'own' -%}
    {{- '[SYSTEM_PROMPT]' + messages[0].content + '[/SYSTEM_PROMPT]' -}}
  {%- else -%}
    {%- set system = messages[0].content + '\n\n' -%}
  {%- endif -%}
{%- endif -%}
{%- for message in turns -%}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
    {{- raise_exception('after an optional system message user and assistant take turns') -}}
  {%- endif -%}
  {%- if message.role == 'user' -%}
    {%- set takes_system = loop.last if system_turn == 'last' else loop.first -%}
    {{- begin + (system if takes_system else '') + message.content + end -}}
  {%- elif message.role == 'system' -%}
    {{- raise_exception('the first message alone can be the system') -}}
  {%- else -%}
    {{- space + (message.content | trim if trims else message.content) + eos_token -}}
  {%- endif -%}
{%- endfor -%}
)";

// google/gemma-2-2b-it: no system.
constexpr std::string_view kGemma2 = R"(
{{- bos_token -}}
{%- if messages[0].role == 'system' -%}
  {{- raise_exception('this format has no system message') -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
    {{- raise_exception('user and assistant take turns') -}}
  {%- endif -%}
  {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\n' -}}
  {{- message.content | trim + '<end_of_turn>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<start_of_turn>model\n' -}}
{%- endif -%}
)";

// google/gemma-3-1b-it: the first question takes the system's words.
constexpr std::string_view kGemma3 = R"(
{{- bos_token -}}
{%- set system = '' -%}
{%- set turns = messages -%}
{%- if messages[0].role == 'system' -%}
  {%- set system = messages[0].content + '\n\n' -%}
  {%- set turns = messages[1:] -%}
{%- endif -%}
{%- for message in turns -%}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
    {{- raise_exception('after an optional system message user and assistant take turns') -}}
  {%- endif -%}
  {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' -}}
  {{- (system if loop.first else '') + message.content | trim + '<end_of_turn>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<start_of_turn>model\n' -}}
{%- endif -%}
)";

// microsoft/Phi-3.5-mini-instruct; Phi-4-mini-instruct without line feeds; phi-4.
constexpr std::string_view kPhi3 = R"(
{%- for message in messages -%}
  {%- if message.role != 'system' or message.content -%}
    {{- '<|' + message.role + '|>\n' + message.content + '<|end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{{- '<|assistant|>\n' if add_generation_prompt else eos_token -}}
)";
constexpr std::string_view kPhi4Mini = R"(
{%- for message in messages -%}
  {{- '<|' + message.role + '|>' + message.content + '<|end|>' -}}
{%- endfor -%}
{{- '<|assistant|>' if add_generation_prompt else eos_token -}}
)";
constexpr std::string_view kPhi4 = R"(
{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '<|im_sep|>' + message.content + '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant<|im_sep|>' -}}
{%- endif -%}
)";

// allenai/OLMo-2-1124-7B-Instruct and OLMoE-1B-7B-0924-Instruct.
constexpr std::string_view kOlmo2 = R"(
{{- bos_token -}}
{%- for message in messages -%}
  {{- '<|' + message.role + '|>\n' + message.content -}}
  {%- if message.role == 'assistant' -%}
    {{- eos_token -}}
  {%- endif -%}
  {%- if message.role != 'assistant' or not loop.last -%}
    {{- '\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|assistant|>\n' -}}
{%- endif -%}
)";

// allenai/Olmo-3-7B-Instruct and Olmo-3-7B-Think, which begins every answer with its thoughts.
constexpr std::string_view kOlmo3Instruct =
    "{%- set introduction, beginning = 'You are a helpful function-calling AI assistant.', '' -%}";
constexpr std::string_view kOlmo3Think =
    "{%- set introduction = 'You are OLMo, a helpful function-calling AI assistant built by Ai2. Your date cutoff is "
    "November 2024, and your model weights are available at https://huggingface.co/allenai.' -%}"
    "{%- set beginning = '<think>' -%}";
constexpr std::string_view kOlmo3 = R"(
{%- set no_functions = ' You do not currently have access to any functions. <functions></functions>' -%}
{%- if messages | selectattr('role', 'equalto', 'system') | list | length == 0 -%}
  {{- '<|im_start|>system\n' + introduction + no_functions + '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '\n' + message.content -}}
  {%- if message.role == 'system' -%}
    {{- no_functions -}}
  {%- endif -%}
  {{- eos_token if message.role == 'assistant' and loop.last else '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n' + beginning -}}
{%- endif -%}
)";

// ibm-granite/granite-3.3-2b-instruct.
constexpr std::string_view kGranite3 = R"(
{%- set turns = messages -%}
{%- if messages[0].role == 'system' -%}
  {%- set system = messages[0].content -%}
  {%- set turns = messages[1:] -%}
{%- else -%}
  {%- set system = "Knowledge Cutoff Date: April 2024. Today's Date: " + strftime_now('%B %d, %Y') -%}
  {%- set system = system + '. You are Granite, developed by IBM. You are a helpful AI assistant.' -%}
{%- endif -%}
{{- '<|start_of_role|>system<|end_of_role|>' + system + '<|end_of_text|>\n' -}}
{%- for message in turns -%}
  {{- '<|start_of_role|>' + message.role + '<|end_of_role|>' + message.content + '<|end_of_text|>\n' -}}
  {%- if loop.last and add_generation_prompt -%}
    {{- '<|start_of_role|>assistant<|end_of_role|>' -}}
  {%- endif -%}
{%- endfor -%}
)";

// openai/gpt-oss-20b, harmony: the first message's words are the developer's, an answer's thoughts have a channel.
constexpr std::string_view kGptOss = R"(
{{- '<|start|>system<|message|>' -}}
{{- (model_identity or 'You are ChatGPT, a large language model trained by OpenAI.') + '\n' -}}
{{- 'Knowledge cutoff: 2024-06\nCurrent date: ' + strftime_now('%Y-%m-%d') + '\n\n' -}}
{{- 'Reasoning: ' + (reasoning_effort or 'medium') + '\n\n' -}}
{{- '# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>' -}}
{%- set turns = messages -%}
{%- if messages[0].role in ['system', 'developer'] -%}
  {%- set turns = messages[1:] -%}
  {%- if messages[0].content -%}
    {{- '<|start|>developer<|message|># Instructions\n\n' + messages[0].content + '\n\n<|end|>' -}}
  {%- endif -%}
{%- endif -%}
{%- for message in turns -%}
  {%- if message.role == 'user' -%}
    {{- '<|start|>user<|message|>' + message.content + '<|end|>' -}}
  {%- elif message.role == 'assistant' -%}
    {%- if '<|channel|>' in message.content -%}
      {{- raise_exception('an answer with channels of its own: give its thoughts as reasoning_content') -}}
    {%- endif -%}
    {%- set ends = loop.last and not add_generation_prompt -%}
    {%- if ends and message.thinking -%}
      {{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' -}}
    {%- endif -%}
    {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + ('<|return|>' if ends else '<|end|>') -}}
  {%- else -%}
    {{- raise_exception('the first message alone is the system or the developer') -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|start|>assistant' -}}
{%- endif -%}
)";

// HuggingFaceH4/zephyr-7b-beta.
constexpr std::string_view kZephyr = R"(
{%- for message in messages -%}
  {{- '<|' + message.role + '|>\n' + message.content + eos_token + '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|assistant|>\n' -}}
{%- endif -%}
)";

std::string both(std::string_view settings, std::string_view rest) { return std::string(settings) + std::string(rest); }

// The day that Llama 3.1 takes for today where nobody says which it is.
constexpr auto kDay = 2024y / 7 / 26;

// A tokenizer without a template has the first format that its tokens fit.
const std::vector<BuiltInFormat>& all() {
  static const std::vector<BuiltInFormat> kAll = {
      {"llama3.1",
       std::string(kLlama31),
       "<|begin_of_text|>",
       "<|eot_id|>",
       kDay,
       {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"}},
      {"llama3",
       std::string(kLlama3),
       "<|begin_of_text|>",
       "<|eot_id|>",
       kDay,
       {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
      {"llama2", std::string(kLlama2), "<s>", "</s>", kDay},
      {"gpt-oss",
       std::string(kGptOss),
       "<|startoftext|>",
       "<|return|>",
       2025y / 8 / 5,
       {"<|start|>", "<|message|>", "<|channel|>", "<|return|>"}},
      {"phi4", std::string(kPhi4), "<|endoftext|>", "<|im_end|>", kDay, {"<|im_start|>", "<|im_sep|>", "<|im_end|>"}},
      {"qwen3",
       std::string(kQwen3),
       "",
       "<|im_end|>",
       kDay,
       {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"},
       {"<functions>"}},
      {"qwen2.5",
       std::string(kQwen25),
       "",
       "<|im_end|>",
       kDay,
       {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>"},
       {"<functions>"}},
      {"qwen2",
       std::string(kQwen2),
       "",
       "<|im_end|>",
       kDay,
       {"<|endoftext|>", "<|im_start|>", "<|im_end|>"},
       {"<functions>"}},
      {"chatml", std::string(kChatMl), "", "<|im_end|>", kDay},
      {"mistral-v1", both(kMistral1, kMistral), "<s>", "</s>", kDay},
      {"mistral-v3", both(kMistral3, kMistral), "<s>", "</s>", kDay, {"[INST]", "[/INST]"}, {"[SYSTEM_PROMPT]"}},
      {"mistral-v3-tekken", both(kMistral3Tekken, kMistral), "<s>", "</s>", kDay},
      {"mistral-v7-tekken", both(kMistral7Tekken, kMistral), "<s>", "</s>", kDay},
      {"gemma3",
       std::string(kGemma3),
       "<bos>",
       "<eos>",
       kDay,
       {"<start_of_turn>", "<end_of_turn>", "<start_of_image>"}},
      {"gemma2", std::string(kGemma2), "<bos>", "<eos>", kDay, {"<start_of_turn>", "<end_of_turn>"}},
      {"phi4-mini",
       std::string(kPhi4Mini),
       "<|endoftext|>",
       "<|endoftext|>",
       kDay,
       {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|tool|>"}},
      {"phi3",
       std::string(kPhi3),
       "<s>",
       "<|endoftext|>",
       kDay,
       {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"}},
      {"olmo2", std::string(kOlmo2), "<|endoftext|>", "<|endoftext|>", kDay},
      {"olmo3", both(kOlmo3Instruct, kOlmo3), "<|endoftext|>", "<|endoftext|>", kDay},
      {"olmo3-think", both(kOlmo3Think, kOlmo3), "<|endoftext|>", "<|endoftext|>", kDay},
      {"granite3",
       std::string(kGranite3),
       "<|end_of_text|>",
       "<|end_of_text|>",
       2025y / 4 / 16,
       {"<|start_of_role|>", "<|end_of_role|>"}},
      {"zephyr", std::string(kZephyr), "<s>", "</s>", kDay}};
  return kAll;
}

}  // namespace

std::span<const BuiltInFormat> built_in_formats() { return all(); }

const BuiltInFormat* find_built_in_format(std::string_view name) {
  const auto found =
      std::find_if(all().begin(), all().end(), [name](const BuiltInFormat& f) { return f.name == name; });
  return found == all().end() ? nullptr : &*found;
}

}  // namespace computron
