#!/bin/sh
# Writes traces/chat.csv to stdout, the same on every machine: two minutes of requests as Azure logged them for language
# models in 2023. Calm of 2 requests/s and bursts of 8 take turns, ten and five seconds each on average.
#
#   inputs/make_trace.sh > inputs/traces/chat.csv
set -eu
LC_ALL=C exec awk '
# Above 0 and below 1. Minimal standard generator (Park and Miller 1988): awks differ in rand().
function uniform() {
  state = (state * 16807) % 2147483647
  return state / 2147483647
}
function waits(mean) { return -mean * log(uniform()) }
BEGIN {
  state = 20231116
  print "TIMESTAMP,ContextTokens,GeneratedTokens"
  turn = waits(10)
  for (now = waits(0.5); now < 120; now += waits(burst ? 0.125 : 0.5)) {
    while (now >= turn) {
      burst = !burst
      turn += waits(burst ? 5 : 10)
    }
    printf "2023-11-16 18:%02d:%010.7f,%d,%d\n", now / 60, now % 60, 20 + waits(400), 5 + waits(100)
  }
}'
