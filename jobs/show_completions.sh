#!/usr/bin/env bash
# jobs/show_completions.sh REQUESTS RESULTS [N]: the first N (3) text prompts of each model in REQUESTS, and with each
# what the model made of it. Prompts in quotes as the request has them, completions as a terminal shows them.
set -euo pipefail
LC_ALL=C exec awk -v limit="${3:-3}" '
# The JSON string under `key`, first in the line, as it is written; empty if there is none.
function string_of(key,    pattern) {
  pattern = "\"" key "\": *\"(\\\\.|[^\"\\\\])*\""
  if (!match($0, pattern)) return ""
  pattern = substr($0, RSTART, RLENGTH)
  sub(/^"[a-z_]*": *"/, "", pattern)
  return substr(pattern, 1, length(pattern) - 1)
}
# Escapes are undone one by one, so that \\n stays a backslash and an n.
function plain(text,    out, c) {
  while (match(text, /\\./)) {
    c = substr(text, RSTART + 1, 1)
    out = out substr(text, 1, RSTART - 1) (c == "n" ? "\n" : c == "t" ? "\t" : c ~ /["\\\/]/ ? c : "\\" c)
    text = substr(text, RSTART + 2)
  }
  return out text
}
FNR == NR {
  id = string_of("custom_id")
  prompt[id] = string_of("prompt")
  model[id] = string_of("model")
  if (prompt[id] != "" && $0 !~ /"echo": *true/) order[++count] = id   # an echo repeats the prompt
  next
}
{ completion[string_of("custom_id")] = string_of("text") }
END {
  for (i = 1; i <= count; i++) {
    id = order[i]
    if (completion[id] == "" || shown[model[id]]++ >= limit) continue
    printf "\n--- %s: \"%s\"\n%s%s\n", model[id], prompt[id], plain(prompt[id]), plain(completion[id])
  }
}' "$1" "$2"
