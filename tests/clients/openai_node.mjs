// The checks of openai-node. Each runs by itself, and its result is one line of JSON on standard output.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const { CLIENT_URL: url, CLIENT_MODEL: model, CLIENT_KEY: apiKey, CLIENT_LIMITED_KEY: limitedKey } = process.env;
const concurrent = Number(process.env.CLIENT_CONCURRENT);
const promptLimit = Number(process.env.CLIENT_PROMPT_LIMIT);

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const create = (body, options) => client.chat.completions.create({ model, messages, ...body }, options);
const messages = [{ role: "user", content: "What is the capital of France?" }];
const endless = { max_tokens: 4000, ignore_eos: true };
const Town = z.object({ name: z.string().max(20), is_capital: z.boolean() });
const tool = {
  type: "function",
  function: {
    name: "weather",
    strict: true,
    parameters: {
      type: "object",
      properties: { city: { enum: ["Oslo", "Rome"] }, celsius: { type: "boolean" } },
      required: ["city", "celsius"],
      additionalProperties: false,
    },
  },
};
const forced = { type: "function", function: { name: "weather" } };

function weather(text) {
  const value = JSON.parse(text);
  assert.ok(["Oslo", "Rome"].includes(value.city) && typeof value.celsius === "boolean", text);
}

async function waitUntilIdle(seconds = 60) {
  for (const deadline = Date.now() + 1000 * seconds; ; ) {
    const response = await fetch(`${url}/metrics`, { headers: { Authorization: `Bearer ${apiKey}` } });
    const counts = (await response.text()).matchAll(/^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$/gm);
    if ([...counts].every((count) => Number(count[1]) === 0)) return;
    assert.ok(Date.now() < deadline, `requests still run after ${seconds} s`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

const checks = {
  chat: async () => {
    const answer = await create({ max_tokens: 8, temperature: 0 });
    assert.ok(answer.choices[0].message.content && ["stop", "length"].includes(answer.choices[0].finish_reason));
    assert.ok(answer.usage.completion_tokens >= 1 && answer.usage.completion_tokens <= 8);
    const streamed = { max_tokens: 8, temperature: 0, stream: true, stream_options: { include_usage: true } };
    const chunks = [];
    for await (const chunk of await create(streamed)) chunks.push(chunk);
    const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
    assert.equal(text, answer.choices[0].message.content);
    const { usage } = chunks.at(-1);
    assert.ok(usage.prompt_tokens > 0 && usage.completion_tokens === answer.usage.completion_tokens);
    const final = client.chat.completions.stream({ model, messages, max_tokens: 8, temperature: 0 });
    assert.equal(await final.finalContent(), text);
  },
  "text completions": async () => {
    const answer = await client.completions.create({ model, prompt: "Paris is", max_tokens: 4, logprobs: 2 });
    assert.equal(answer.choices[0].logprobs.tokens.length, answer.usage.completion_tokens);
  },
  "Responses API": async () => {
    const answer = await client.responses.create({ model, input: "hi", max_output_tokens: 16 });
    assert.ok(answer.output_text && answer.usage.output_tokens >= 1);
    const kinds = [];
    const stream = await client.responses.create({ model, input: "hi", max_output_tokens: 16, stream: true });
    for await (const event of stream) kinds.push(event.type);
    assert.ok(["response.completed", "response.incomplete"].includes(kinds.at(-1)), kinds.join());
  },
  "log-probs": async () => {
    const answer = await create({ max_tokens: 3, logprobs: true, top_logprobs: 2 });
    assert.equal(answer.choices[0].logprobs.content.length, answer.usage.completion_tokens);
  },
  "JSON schema": async () => {
    const schema = { ...tool.function.parameters };
    const format = { type: "json_schema", json_schema: { name: "weather", schema, strict: true } };
    weather((await create({ max_tokens: 100, response_format: format })).choices[0].message.content);
  },
  "`parse()`": async () => {
    const format = zodResponseFormat(Town, "town");
    const answer = await client.chat.completions.parse({ model, messages, max_tokens: 200, response_format: format });
    assert.equal(typeof answer.choices[0].message.parsed.is_capital, "boolean");
  },
  "JSON mode": async () => {
    const answer = await create({ max_tokens: 60, temperature: 0, response_format: { type: "json_object" } });
    const text = answer.choices[0].message.content;
    assert.ok(text.startsWith("{") && !/ {2}|\n/.test(text), text);
  },
  "forced tool call": async () => {
    for (const choice of [forced, "required"]) {
      const answer = await create({ tools: [tool], tool_choice: choice, max_tokens: 200 });
      const [call] = answer.choices[0].message.tool_calls;
      assert.ok(call.function.name === "weather" && call.id);
      weather(call.function.arguments);
    }
    const stream = client.chat.completions.stream({
      model,
      messages,
      tools: [tool],
      tool_choice: forced,
      max_tokens: 200,
    });
    const [call] = (await stream.finalMessage()).tool_calls;
    weather(call.function.arguments);
  },
  "tools by the model's choice": async () => {
    const [answer] = (await create({ tools: [tool], max_tokens: 16 })).choices;
    assert.ok(answer.message.content || answer.message.tool_calls);
    const call = { id: "call_1", type: "function", function: { name: "weather", arguments: '{"city": "Oslo"}' } };
    const history = [
      ...messages,
      { role: "assistant", content: null, tool_calls: [call] },
      { role: "tool", tool_call_id: "call_1", content: "rain" },
    ];
    assert.ok((await create({ messages: history, tools: [tool], max_tokens: 16 })).usage.completion_tokens >= 1);
  },
  models: async () => {
    const names = [];
    for await (const each of client.models.list()) names.push(each.id);
    assert.deepEqual(names, [model]);
    assert.equal((await client.models.retrieve(model)).id, model);
  },
  "factor set": async () => {
    const used = async (body) => {
      const { response } = await client.chat.completions.create({ messages, max_tokens: 2, ...body }).withResponse();
      return response.headers.get("x-rope-factor-set");
    };
    const first = await used({ model });
    assert.ok(first);
    assert.equal(await used({ model: `${model}@${first}` }), first);
    assert.equal(await used({ model, vllm_xargs: { rope_factor_set: first } }), first);
  },
  "unknown model": async () => {
    await assert.rejects(create({ model: "nosuch" }), (error) => {
      return error instanceof OpenAI.NotFoundError && error.code === "model_not_found";
    });
    await assert.rejects(client.models.retrieve("nosuch"), OpenAI.NotFoundError);
  },
  "prompt too long": async () => {
    const long = [{ role: "user", content: "one two three ".repeat(promptLimit) }];
    for (const body of [{ messages: long }, { max_tokens: 100_000_000 }])
      await assert.rejects(create(body), (error) => {
        return error instanceof OpenAI.BadRequestError && error.code === "context_length_exceeded";
      });
  },
  "wrong value": async () => {
    await assert.rejects(create({ temperature: -1 }), (error) => {
      return error instanceof OpenAI.BadRequestError && error.param === "temperature";
    });
  },
  "wrong key": async () => {
    const stranger = client.withOptions({ apiKey: "wrong" });
    await assert.rejects(stranger.models.list(), (error) => {
      return error instanceof OpenAI.AuthenticationError && error.code === "invalid_api_key";
    });
  },
  "rate limit": async () => {
    const limited = client.withOptions({ apiKey: limitedKey }).chat.completions;
    const streams = [];
    for (let i = 0; i < concurrent; i++)
      streams.push(await limited.create({ model, messages, stream: true, ...endless }));
    await assert.rejects(limited.create({ model, messages }), (error) => {
      return error instanceof OpenAI.RateLimitError && error.code === "rate_limit_exceeded";
    });
    for (const stream of streams) stream.controller.abort();
    await waitUntilIdle();
  },
  "request ID": async () => {
    assert.ok((await create({ max_tokens: 1 }))._request_id);
    await assert.rejects(create({ model: "nosuch" }), (error) => Boolean(error.requestID));
  },
  "cached tokens": async () => {
    const long = [{ role: "user", content: "The grass is green. The sky is blue. ".repeat(60) }];
    await create({ messages: long, max_tokens: 1 });
    const { usage } = await create({ messages: long, max_tokens: 1 });
    assert.ok(usage.prompt_tokens_details.cached_tokens > 0);
  },
  timeout: async () => {
    await assert.rejects(create(endless, { timeout: 500 }), OpenAI.APIConnectionTimeoutError);
    await waitUntilIdle();
  },
  "cancelled stream": async () => {
    for await (const _ of await create({ ...endless, stream: true })) break;
    await waitUntilIdle();
  },
};

for (const [check, run] of Object.entries(checks)) {
  const error = await run().then(() => null, (reason) => reason.stack ?? String(reason));
  console.log(JSON.stringify({ check, error }));
}
