#!/bin/sh
# The images' entry point, for the arguments of this project's image and of vllm/vllm-openai alike:
#   (none), MODEL ..., --model MODEL ..., serve MODEL ...   ropeswitch serve
#   plan ..., factors ..., patches ..., loadtest ...        that command of ropeswitch
#   vllm serve MODEL ..., python3 ..., any other program    that program; ROPESWITCH_LADDER turns the switch on in vLLM
set -eu
case "${1-}" in
serve | plan | factors | patches | loadtest) exec ropeswitch "$@" ;;
vllm | ropeswitch | python | python3 | sh | bash) exec "$@" ;;
/*) [ -f "$1" ] && [ -x "$1" ] && exec "$@" ;;
esac
exec ropeswitch serve "$@"
