"""What the tables of ``docs/loadtests.md`` say of keys that the code has no sentence on."""

LATENCIES = {
    "ttft": "Time to first token: from sending a request to the first chunk of its answer; streamed answers only",
    "tpot": "Time per output token: from the first chunk to the last, over the tokens less one; not for one token",
    "itl": "Inter-token latency: between consecutive chunks; all gaps of all answers",
    "e2el": "End-to-end latency: from sending a request to the last chunk of its answer",
}
LATENESS = {
    "lateness": "From the scheduled time of a request to its sending; all requests",
    "ttft_due": "From the scheduled time of a request to its first chunk: the wait of a user",
}
# Of vLLM's benchmark.
FIGURES = {
    "duration": "Seconds from the start to the last answer, of all repetitions together",
    "completed": "Requests answered completely",
    "failed": "Requests that failed, for any reason",
    "total_input_tokens": "Prompt tokens of completed requests, by the server's count",
    "total_output_tokens": "Tokens of their answers, by the server's count",
    "request_throughput": "`completed` over `duration`",
    "request_goodput": "Completed requests that meet every objective, over `duration`; null without objectives",
    "output_throughput": "`total_output_tokens` over `duration`",
    "total_token_throughput": "Both counts over `duration`",
    "max_output_tokens_per_s": "Chunks in the busiest second",
    "max_concurrent_requests": "Requests in flight in the busiest second",
}
OWN_FIGURES = {
    "cancelled": "Requests that the client cancelled, as the workload asks",
    "interrupted": "Requests in flight when a run was stopped",
    "checked": "Completed requests whose answer was judged",
    "correct": "Answers with the pass key and no other number",
    "wrong": "The other judged answers",
    "correct_share": "`correct` over `checked`; null if none was judged",
    "miscounted": "Completed requests with different prompt token counts at server and client; should be 0",
    "crossings": "Completed requests whose sequence outgrew a factor set",
    "good_share": "Share of the completed and failed requests that meet every objective; null without objectives",
    "bands": "The same figures for each length band with requests, by name",
}
RUN = {
    "date": "Time of writing, UTC",
    "backend": "`openai-chat` or `openai`",
    "endpoint_type": "Same as `backend`",
    "label": "Name of the workload",
    "model_id": "Requested model",
    "tokenizer_id": "The same",
    "num_prompts": "Requests sent to the target",
    "request_rate": 'Requests per second; `"inf"` for a closed loop; a list for a sweep',
    "burstiness": "Of `gamma` arrivals; 1 of all others",
    "max_concurrency": "Of a closed loop; null of others; a list of a sweep's",
}
OWN_RUN = {
    "format": "1; increased by incompatible changes",
    "workload": "The workload file, with the values of flags",
    "settings": "Other settings: text, seed, scale, `--longest`, servers, repetitions",
    "client": "Versions of ropeswitch and Python, number of CPUs",
    "complete": "Whether every run finished",
    "stopped": "Reasons of runs that stopped early",
    "slo": "The objectives",
    "assertions": "For each point and limit: `text`, `value`, `ok`, `point`",
    "points": "For each rate or concurrency: `label`, `rate`, the figures of `target` and of `baseline`, and their `ratios`",
}
KEYS = {
    "poisson.rate": "Mean requests per second",
    "gamma.rate": "Mean requests per second",
    "gamma.burstiness": "Shape; 1 is Poisson",
    "bursts.rate": "Mean requests per second",
    "bursts.size": "Requests at once",
    "closed.concurrency": "Clients",
    "trace.file": "JSON lines; path relative to the working folder",
    "trace.speed": "Speed-up over the recording",
    "mix[].kind": "Name of the part in results",
    "mix[].share": "Share of the requests, relative to the shares of all parts",
    "mix[].count": "Exact number of requests, evenly spread, instead of a share",
    "mix[].prompt": "Prompt tokens, including the chat template; not with a trace",
    "mix[].output": "Maximum answer tokens; not with a trace",
    "mix[].form": "Send prompts as text, or as token ids (with completions)",
    "mix[].stream": "Stream answers; whole answers have no time to first token",
    "cancel.share": "Share of the part's requests",
    "cancel.after": "Chunks of the answer",
    "prefix.tokens": "Tokens of the shared text",
    "prefix.groups": "Number of shared texts",
    "turns.count": "User messages",
    "turns.grow": "Tokens by which each prompt is longer than the last",
    "turns.think": "Seconds from an answer to the next message",
}
LENGTHS = {
    "fixed": "A fixed number; a number alone means the same",
    "uniform": "From `min` to `max`, both included",
}
