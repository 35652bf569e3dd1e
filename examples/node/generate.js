// Streams an answer: `npm install && node generate.js [HOST:PORT]`, with the key in PENSTOCK_API_KEY.
import path from "node:path";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const target = process.argv[2] ?? "127.0.0.1:7001";
const here = path.dirname(fileURLToPath(import.meta.url));
const protos = path.join(here, "..", "..", "protos");
const options = { includeDirs: [protos], defaults: true, oneofs: true };
const definition = protoLoader.loadSync("penstock/v1/inference.proto", options);
const { penstock } = grpc.loadPackageDefinition(definition);

const client = new penstock.v1.Inference(target, grpc.credentials.createInsecure());
const metadata = new grpc.Metadata();
metadata.set("authorization", `Bearer ${process.env.PENSTOCK_API_KEY}`);

const request = { text: "Once upon a time", maxOutputTokens: 64, sampling: { temperature: 0 } };
const call = client.Generate(request, metadata, { deadline: Date.now() + 60_000 });
call.on("data", (response) => {
  if (response.frame === "delta") process.stdout.write(response.delta.text);
  if (response.frame === "finished") process.stdout.write(`\n${response.finished.usage.outputTokens} tokens\n`);
});
call.on("error", (error) => {
  process.stderr.write(`${error.code} ${error.details}\n`); // the status; rich details are in error.metadata
  process.exitCode = 1;
});
call.on("end", () => client.close());
