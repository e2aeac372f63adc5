#include "src/text/tokenizer_class.h"

#include <algorithm>

namespace computron {
namespace {

const std::vector<TokenRole> kLlamaRoles = {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}};
const std::vector<TokenRole> kEndOfTextRoles = {
    {"bos_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}, {"unk_token", "<|endoftext|>"}};
const std::vector<TokenRole> kBertRoles = {{"unk_token", "[UNK]"},
                                           {"sep_token", "[SEP]"},
                                           {"pad_token", "[PAD]"},
                                           {"cls_token", "[CLS]"},
                                           {"mask_token", "[MASK]"}};

const TokenizerClass kClasses[] = {
    {.name = "BertTokenizer", .roles = kBertRoles},
    {.name = "CodeLlamaTokenizer", .roles = kLlamaRoles, .settings_decide = true, .adds_bos = true},
    {.name = "CohereTokenizer",
     .roles = {{"bos_token", "<BOS_TOKEN>"}, {"eos_token", "<|END_OF_TURN_TOKEN|>"}, {"unk_token", "<UNK>"}},
     .settings_decide = true,
     .adds_bos = true},
    {.name = "DistilBertTokenizer", .roles = kBertRoles},
    {.name = "GPT2Tokenizer", .roles = kEndOfTextRoles},
    {.name = "GPTNeoXTokenizer", .roles = kEndOfTextRoles, .settings_decide = true},
    {.name = "GemmaTokenizer",
     .roles = {{"bos_token", "<bos>"}, {"eos_token", "<eos>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}},
     .settings_decide = true,
     .adds_bos = true},
    {.name = "LlamaTokenizer", .roles = kLlamaRoles, .settings_decide = true, .adds_bos = true},
    {.name = "Qwen2Tokenizer",
     .roles = {{"unk_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}, {"pad_token", "<|endoftext|>"}}},
    {.name = "RobertaTokenizer",
     .roles = {{"bos_token", "<s>"},
               {"eos_token", "</s>"},
               {"sep_token", "</s>"},
               {"cls_token", "<s>"},
               {"unk_token", "<unk>"},
               {"pad_token", "<pad>"},
               {"mask_token", "<mask>"}}},
};
const TokenizerClass kUnknown;

struct ModelClass {
  std::string_view model_type, tokenizer_class;
};
constexpr ModelClass kOfModels[] = {{"bert", "BertTokenizer"},       {"distilbert", "DistilBertTokenizer"},
                                    {"gpt2", "GPT2Tokenizer"},       {"granite", "GPT2Tokenizer"},
                                    {"opt", "GPT2Tokenizer"},        {"qwen2", "Qwen2Tokenizer"},
                                    {"qwen2_moe", "Qwen2Tokenizer"}, {"qwen3", "Qwen2Tokenizer"},
                                    {"qwen3_moe", "Qwen2Tokenizer"}, {"roberta", "RobertaTokenizer"}};

}  // namespace

const TokenizerClass& tokenizer_class(std::string_view name) {
  if (name.ends_with("Fast")) name.remove_suffix(4);
  const auto* const found = std::ranges::find(kClasses, name, &TokenizerClass::name);
  return found == std::end(kClasses) ? kUnknown : *found;
}

std::string_view class_of_model(std::string_view model_type) {
  const auto* const found = std::ranges::find(kOfModels, model_type, &ModelClass::model_type);
  return found == std::end(kOfModels) ? "" : found->tokenizer_class;
}

}  // namespace computron
