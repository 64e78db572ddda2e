// What an agent in JavaScript does, with the openai package as it is. Prints what it was told as JSON.
import OpenAI from "openai";

const client = new OpenAI({ maxRetries: 0, timeout: 60_000 });
const model = "planner";
const hello = [{ role: "user", content: "hello" }];
const weather = {
  type: "function",
  function: {
    name: "weather",
    description: "of a place",
    parameters: { type: "object", properties: { place: { type: "string" }, days: { type: "number" } } },
  },
};
const told = {};

const whole = await client.chat.completions.create({ model, messages: hello });
told.whole = { said: whole.choices[0].message.content, usage: whole.usage };

const stream = await client.chat.completions.create({ model, messages: hello, stream: true });
told.streamed = "";
for await (const chunk of stream) told.streamed += chunk.choices[0]?.delta?.content ?? "";

const called = await client.chat.completions.create({ model, messages: hello, tools: [weather] });
const calls = called.choices[0].message.tool_calls;
told.calls = calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]);
told.finish = called.choices[0].finish_reason;
// As JavaScript writes numbers: 1.0 becomes 1.
const rewritten = calls.map((call) => ({
  ...call,
  function: { ...call.function, arguments: JSON.stringify(JSON.parse(call.function.arguments)) },
}));
const results = calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: "cold" }));
const history = [...hello, { ...called.choices[0].message, tool_calls: rewritten }, ...results];
const after = await client.chat.completions.create({ model, messages: history, tools: [weather] });
told.after = after.choices[0].message.content;

const runner = client.chat.completions.stream({ model, messages: hello, tools: [weather] });
told.streamedCalls = (await runner.finalChatCompletion()).choices[0].message.tool_calls.map((call) => [
  call.function.name,
  JSON.parse(call.function.arguments),
]);

const response = await client.responses.create({ model, input: "hello" });
told.response = response.output_text;

const events = await client.responses.create({ model, input: "hello", stream: true });
told.responseStreamed = "";
for await (const event of events) {
  if (event.type === "response.output_text.delta") told.responseStreamed += event.delta;
  if (event.type === "response.completed") told.responseCompleted = event.response.output[0].content[0].text;
}

const schema = {
  type: "object",
  properties: { right: { type: "boolean" }, why: { type: "string" } },
  required: ["right", "why"],
  additionalProperties: false,
};
const structured = await client.chat.completions.parse({
  model,
  messages: hello,
  response_format: { type: "json_schema", json_schema: { name: "verdict", schema, strict: true } },
});
told.structured = JSON.parse(structured.choices[0].message.content);

const failed = async (asking) => {
  try {
    await asking;
  } catch (error) {
    return [error.constructor.name, error.status, error.message];
  }
  return ["nothing"];
};
told.unknownModel = await failed(client.chat.completions.create({ model: "gpt-4o", messages: hello }));
told.badField = await failed(client.chat.completions.create({ model, messages: hello, logprobs: true }));
const stranger = new OpenAI({ apiKey: "nobody", maxRetries: 0 });
told.wrongKey = await failed(stranger.chat.completions.create({ model, messages: hello }));

console.log(JSON.stringify(told));
