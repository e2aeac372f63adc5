#!/bin/sh
# Writes quickstart.jsonl to stdout: 120 requests over the models of inputs/trained in runs of 1 to 8, the same on every
# machine, and three bad lines that must cost only themselves (unknown model, prompt over 256 positions, malformed JSON).
#
#   inputs/make_requests.sh > inputs/quickstart.jsonl
set -eu
LC_ALL=C exec awk '
# An integer from low to high. Minimal standard generator (Park and Miller 1988): awks differ in rand().
function random(low, high) {
  state = (state * 16807) % 2147483647
  return low + int(state / 2147483647 * (high - low + 1))
}
# Beginnings in the kinds that the variants were trained on, in JSON; `any` may go on in each of them. None ends in a
# space: a word and the space before it are one token.
function name_prompts() {
  prompts["manual"] = "NAME\\n       read|SYNOPSIS\\n       #include|DESCRIPTION\\n       The|ERRORS\\n       EINVAL|" \
    "RETURN VALUE\\n       On success|SEE ALSO\\n       open(2),|NOTES\\n       On Linux|FILES\\n       /etc/|" \
    "BUGS\\n       There|CONFORMING TO\\n       POSIX"
  prompts["python"] = "def read_file(|class Reader:\\n    def __init__(self|import os\\nimport|    try:\\n        return|" \
    "    if self._closed:\\n        raise|    def __repr__(self):\\n        return|if __name__ ==|" \
    "    for name in|    while True:\\n        line =|    @property\\n    def"
  prompts["licence"] = "Permission is hereby granted|This program is free software|THE SOFTWARE IS PROVIDED|" \
    "Redistribution and use in|You may not|The Licensor|IN NO EVENT SHALL|Each Contributor|This License|" \
    "If you distribute copies of"
  prompts["any"] = "The|If the|This|When"
}
function one_of(list,    parts) { return parts[random(1, split(list, parts, "|"))] }
function prompt_for(model) {
  if (random(1, 5) == 1) return one_of(prompts["any"])
  return one_of(prompts[model == "base" ? one_of("manual|python|licence") : model])
}
function line(id, body) {
  printf "{\"custom_id\": \"%s\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {%s}}\n", id, body
}
function request(number, model,    body) {
  body = "\"model\": \"" model "\", \"prompt\": \"" prompt_for(model) "\", \"max_tokens\": " random(40, 60)
  body = body ", \"temperature\": " (random(1, 4) == 1 ? "0" : "0.7, \"seed\": " number)
  if (random(1, 6) == 1) body = body ", \"logprobs\": 2"
  if (random(1, 12) == 1) body = body ", \"echo\": true"
  line(sprintf("quickstart-%03d", number), body)
}
function long_prompt(    text, i) {
  for (i = 0; i < 300; i++) text = text "the file "
  return text
}
BEGIN {
  state = 20230911
  name_prompts()
  split("base manual python licence", models, " ")
  previous = made = 0
  while (made < 120) {
    do model = random(1, 4); while (model == previous)
    previous = model
    for (run = random(1, 8); run > 0 && made < 120; run--) {
      request(made, models[model])
      made++
      if (made == 30) line("bad-unknown-model", "\"model\": \"poetry\", \"prompt\": \"The\", \"max_tokens\": 8")
      if (made == 60) line("bad-long-prompt", "\"model\": \"base\", \"prompt\": \"" long_prompt() "\", \"max_tokens\": 8")
      if (made == 90) print "{\"custom_id\": \"bad-json\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"model\": \"base\", \"prompt\": \"The\",, \"max_tokens\": 8}}"
    }
  }
}' /dev/null
