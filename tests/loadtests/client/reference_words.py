"""What the tables of ``docs/loadtests.md`` say of keys that the code has no sentence on."""

LATENCIES = {
    "ttft": "Time to first token: from sending a request to the first chunk of its answer; of streamed answers",
    "tpot": "Time per output token: from the first chunk to the last, over the tokens but one; of answers of two and more",
    "itl": "Inter-token latency: between a chunk and the next; all gaps of all answers together",
    "e2el": "End-to-end latency: from sending a request to the last chunk of its answer",
}
LATENESS = {
    "lateness": "From when a request was due to when it was sent, of all requests",
    "ttft_due": "From when a request was due to its first chunk: what a user would have waited",
}
# Of vLLM's benchmark.
FIGURES = {
    "duration": "Seconds from the start to the last answer, of all repetitions together",
    "completed": "Requests that were answered to their end",
    "failed": "Requests that were not, for whatever reason",
    "total_input_tokens": "Prompt tokens of the completed ones, by the server's count",
    "total_output_tokens": "Tokens of their answers, by the server's count",
    "request_throughput": "`completed` over `duration`",
    "request_goodput": "Completed requests that keep every objective, over `duration`; null without objectives",
    "output_throughput": "`total_output_tokens` over `duration`",
    "total_token_throughput": "Both counts over `duration`",
    "max_output_tokens_per_s": "Chunks in the second that had most",
    "max_concurrent_requests": "Requests in flight in the second that had most",
}
OWN_FIGURES = {
    "cancelled": "Requests that the client gave up, as the workload asks",
    "interrupted": "Requests in flight when a run was stopped",
    "checked": "Completed requests whose answer was judged",
    "correct": "Of these, those that tell the pass key and no other",
    "wrong": "Of these, the others",
    "correct_share": "`correct` over `checked`; null where none was",
    "miscounted": "Completed requests of whose prompt the server counted other tokens than the client; should be 0",
    "crossings": "Completed requests whose sequence outgrew a factor set",
    "good_share": "Share of the completed requests that keep every objective; null without objectives",
    "bands": "The same figures of each length band that has requests, by its name",
}
RUN = {
    "date": "When results were written, UTC",
    "backend": "`openai-chat` or `openai`",
    "endpoint_type": "The same",
    "label": "Name of the workload",
    "model_id": "Model that was asked for",
    "tokenizer_id": "The same",
    "num_prompts": "Requests that were sent to the target",
    "request_rate": 'Requests a second; `"inf"` of a closed loop; a list of a sweep\'s',
    "burstiness": "Of `gamma` arrivals; 1 of all others",
    "max_concurrency": "Of a closed loop; null of others; a list of a sweep's",
}
OWN_RUN = {
    "format": "1; another number comes with a change that a reader must know of",
    "workload": "The workload, with the flags in the place of what its file says",
    "settings": "What else was asked for: text, seed, scale, `--longest`, servers, repetitions",
    "client": "Versions of ropeswitch and Python, number of CPUs",
    "complete": "Whether every run came to its end",
    "stopped": "Why those that did not were stopped",
    "slo": "The objectives",
    "assertions": "Of each point and limit: `text`, `value`, `ok`, `point`",
    "points": "Of each rate or concurrency: `label`, `rate`, the figures of `target` and of `baseline`, and their `ratios`",
}
KEYS = {
    "poisson.rate": "Requests a second, in the mean",
    "gamma.rate": "Likewise",
    "gamma.burstiness": "The shape; 1 is Poisson",
    "bursts.rate": "Likewise",
    "bursts.size": "Requests at once",
    "closed.concurrency": "Clients",
    "closed.think": "Seconds",
    "trace.file": "JSON lines, from the folder where the command runs",
    "trace.speed": "Times as fast as recorded",
    "mix[].kind": "Names the part in results",
    "mix[].share": "Of the requests, over the shares of all parts",
    "mix[].count": "Exactly so many, evenly spread, instead of a share",
    "mix[].prompt": "Tokens of the prompt, with the chat template's; not with a trace",
    "mix[].output": "Tokens of the answer at most; not with a trace",
    "mix[].form": "A prompt's text, or its token ids (with completions)",
    "mix[].stream": "Whether answers are streamed; others have no time to a first token",
    "cancel.share": "Of the part's requests",
    "cancel.after": "Chunks of the answer",
    "prefix.tokens": "Of the text that prompts share",
    "prefix.groups": "Texts, each prompt beginning with one of them",
    "turns.count": "Messages of the user",
    "turns.grow": "By which each prompt is longer than the last",
    "turns.think": "Seconds from an answer to the next message",
}
LENGTHS = {
    "fixed": "That many; a number alone means the same",
    "uniform": "From `min` to `max`, both included",
}
