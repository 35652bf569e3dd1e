// The client `openai` for Node.js. Prints the outcome of each step as steps.py does.
const OpenAI = require("openai");
const { zodResponseFormat, zodTextFormat } = require("openai/helpers/zod");
const { z } = require("zod");

const MAX_ERROR_CHARS = 600;
const model = process.env.TRIAL_MODEL;
const client = new OpenAI({
  baseURL: process.env.TRIAL_BASE_URL,
  apiKey: process.env.TRIAL_API_KEY,
  maxRetries: 0,
});
const messages = [{ role: "user", content: "What is the capital of France?" }];
const Capital = z.object({ city: z.enum(["Paris", "Berlin"]) });
const weather = {
  name: "get_weather",
  parameters: {
    type: "object",
    properties: { city: { type: "string", enum: ["Paris", "Berlin"] } },
    required: ["city"],
    additionalProperties: false,
  },
};

function expect(condition, found) {
  if (!condition) throw new Error(`found ${JSON.stringify(found)}`);
}

const steps = {
  models: async () => {
    const names = [];
    for await (const each of client.models.list()) names.push(each.id);
    expect(names.includes(model), names);
  },
  chat: async () => {
    const answer = await client.chat.completions.create({ model, messages, max_completion_tokens: 8, temperature: 0 });
    expect(answer.choices[0].message.content && answer.usage.completion_tokens, answer);
  },
  "chat stream": async () => {
    const stream = client.chat.completions.stream({
      model,
      messages,
      max_completion_tokens: 8, temperature: 0,
      stream_options: { include_usage: true },
    });
    let text = "";
    stream.on("content", (part) => (text += part));
    const answer = await stream.finalChatCompletion();
    expect(text && text === answer.choices[0].message.content && answer.usage.completion_tokens, answer);
  },
  "chat parse": async () => {
    const answer = await client.chat.completions.parse({
      model,
      messages,
      max_completion_tokens: 64, temperature: 0,
      response_format: zodResponseFormat(Capital, "capital"),
    });
    expect(Capital.safeParse(answer.choices[0].message.parsed).success, answer);
  },
  tools: async () => {
    const answer = await client.chat.completions
      .stream({
        model,
        messages,
        max_completion_tokens: 64, temperature: 0,
        tools: [{ type: "function", function: weather }],
        tool_choice: "required",
      })
      .finalChatCompletion();
    expect(answer.choices[0].message.tool_calls[0].function.name === "get_weather", answer);
  },
  "responses stream and parse": async () => {
    const stream = client.responses.stream({
      model,
      input: messages,
      max_output_tokens: 64, temperature: 0,
      text: { format: zodTextFormat(Capital, "capital") },
    });
    const kinds = [];
    for await (const event of stream) kinds.push(event.type);
    const answer = await stream.finalResponse();
    expect(kinds.includes("response.output_text.delta") && kinds.at(-1) === "response.completed", kinds);
    expect(Capital.safeParse(answer.output_parsed).success, answer);
  },
  "responses by id": async () => {
    const background = { model, input: messages, max_output_tokens: 32, temperature: 0, background: true, stream: true };
    const events = [];
    for await (const event of await client.responses.create(background)) events.push(event);
    const id = events.at(-1).response.id;
    const again = [];
    for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: 2 })) again.push(event);
    expect(JSON.stringify(again) === JSON.stringify(events.slice(3)), again);
    const more = await client.responses.create({
      model, input: "And of Spain?", previous_response_id: id, max_output_tokens: 8, temperature: 0,
    });
    expect(more.previous_response_id === id, more);
    await client.responses.delete(id);
    expect(await client.responses.retrieve(id).catch((error) => error.status === 404), id);
  },
  "responses tools": async () => {
    const answer = await client.responses.create({
      model,
      input: messages,
      max_output_tokens: 64, temperature: 0,
      tools: [{ type: "function", strict: true, ...weather }],
      tool_choice: "required",
    });
    expect(answer.output[0].type === "function_call", answer);
  },
  embeddings: async () => {
    const answer = await client.embeddings.create({ model, input: ["one", "two"], dimensions: 16 });
    expect(answer.data.every((each) => each.embedding.length === 16), answer);
  },
};

async function main() {
  for (const [step, run] of Object.entries(steps)) {
    let error = "";
    try {
      await run();
    } catch (failure) {
      error = `${failure.name}: ${failure.message}`.slice(0, MAX_ERROR_CHARS);
      process.exitCode = 1;
    }
    console.log(JSON.stringify({ step, error }));
  }
}

main();
