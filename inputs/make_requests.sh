#!/bin/sh
# Writes quickstart.jsonl to stdout: 240 requests over opt-a to opt-d in runs of 1 to 8, the same on every machine, and
# three bad lines that must cost only themselves (unknown model, prompt over 2048 positions, malformed JSON).
#
#   inputs/make_requests.sh > inputs/quickstart.jsonl
set -eu
LC_ALL=C exec awk '
# An integer from low to high. Minimal standard generator (Park and Miller 1988): awks differ in rand().
function random(low, high) {
  state = (state * 16807) % 2147483647
  return low + int(state / 2147483647 * (high - low + 1))
}
function token_list(count,    text, i) {
  for (i = 0; i < count; i++) text = text (i ? ", " : "") random(4, 1000)
  return "[" text "]"
}
function line(id, body) {
  printf "{\"custom_id\": \"%s\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {%s}}\n", id, body
}
function request(number, model,    body) {
  body = "\"model\": \"" model "\", \"prompt\": " token_list(random(4, 40))
  body = body ", \"max_tokens\": " random(4, 24) ", \"temperature\": 0"
  if (random(1, 6) == 1) body = body ", \"logprobs\": 2"
  if (random(1, 12) == 1) body = body ", \"echo\": true"
  line(sprintf("quickstart-%03d", number), body)
}
BEGIN {
  state = 20230911
  previous = 0
  while (made < 240) {
    do model = random(1, 4); while (model == previous)
    previous = model
    for (run = random(1, 8); run > 0 && made < 240; run--) {
      request(made, "opt-" substr("abcd", model, 1))
      made++
      if (made == 60) line("bad-unknown-model", "\"model\": \"opt-z\", \"prompt\": [4, 5, 6, 7], \"max_tokens\": 8")
      if (made == 120) line("bad-long-prompt", "\"model\": \"opt-a\", \"prompt\": " token_list(2100) ", \"max_tokens\": 8")
      if (made == 180) print "{\"custom_id\": \"bad-json\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"model\": \"opt-b\", \"prompt\": [4, 5,, 6]}}"
    }
  }
}' /dev/null
