#!/bin/sh
# Entry point of the images; accepts the arguments of this project's image and those of vllm/vllm-openai:
#   (none), MODEL ..., --model MODEL ..., serve MODEL ...   ropeswitch serve
#   plan ..., factors ..., patches ..., loadtest ..., verify ...   this ropeswitch command
#   vllm serve MODEL ..., python3 ..., any other program    this program; ROPESWITCH_LADDER turns the switch on in vLLM
set -eu
case "${1-}" in
serve | plan | factors | patches | loadtest | verify) exec ropeswitch "$@" ;;
vllm | ropeswitch | python | python3 | sh | bash) exec "$@" ;;
/*) [ -f "$1" ] && [ -x "$1" ] && exec "$@" ;;
esac
exec ropeswitch serve "$@"
