// Runs one command of a Node program, as __main__.py does for programs in Python. The last line of the output contains
// the figures as JSON. The module of a system exports prepare(), worker(), which runs until the process is stopped, and
// client(), which returns how to enqueue.
"use strict";

const fs = require("node:fs");

const IN_ONE_CALL = 1000;
const GAP_MS = 50;
const WARM_UP = 3;
const LONGEST_MS = 30_000;

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
// The wall clock in seconds, as precise as Python's time.time().
const now = () => (performance.timeOrigin + performance.now()) / 1000;

async function inOneCall(client, count) {
  for (let first = 0; first < count; first += IN_ONE_CALL) {
    await client.enqueueMany(Math.min(IN_ONE_CALL, count - first));
  }
}

async function timed(run, times, jobsEach) {
  await run(1); // connects and prepares
  const started = performance.now();
  const cpu = process.cpuUsage();
  await run(times);
  const { user, system } = process.cpuUsage(cpu);
  const jobs = times * jobsEach;
  return { "jobs/s": jobs / ((performance.now() - started) / 1000), "CPU µs/job": (user + system) / jobs };
}

async function millisecondsUntilMarked(start) {
  const file = process.env.BENCH_TIMES;
  const size = fs.statSync(file).size;
  await start();
  const committed = now();
  const deadline = performance.now() + LONGEST_MS;
  while (fs.statSync(file).size < size + 8) {
    if (performance.now() > deadline) throw new Error("No handler ran.");
    await sleep(0.5);
  }
  return (fs.readFileSync(file).readDoubleLE(size) - committed) * 1000;
}

async function latencies(start, samples, gapSeconds) {
  const found = [];
  for (let sample = 0; sample < WARM_UP + samples; sample += 1) {
    await sleep(GAP_MS + Math.random() * gapSeconds * 1000);
    found.push(await millisecondsUntilMarked(start));
  }
  return found.slice(WARM_UP);
}

async function oneByOne(client, count) {
  for (let number = 0; number < count; number += 1) await client.enqueue();
}

const COMMANDS = {
  enqueue: (client, count) => timed((times) => oneByOne(client, times), count, 1),
  "enqueue-many": (client, calls) => timed((times) => inOneCall(client, times * IN_ONE_CALL), calls, IN_ONE_CALL),
  fill: (client, count) => inOneCall(client, count),
  "wake-up": (client, samples, gapSeconds) => latencies(client.enqueue, samples, gapSeconds),
  "chain-latency": (client, samples, gapSeconds) => latencies(client.startChain, samples, gapSeconds),
};

// Handlers record their start with eight bytes each: see benchmarks/times.py.
let times;
exports.append = () => {
  times ??= fs.openSync(process.env.BENCH_TIMES, "a");
  const bytes = Buffer.alloc(8);
  bytes.writeDoubleLE(now());
  fs.writeSync(times, bytes);
};

async function main(name, command, ...amounts) {
  const program = require(`./${name}.cjs`);
  if (command === "prepare") return program.prepare();
  if (command === "worker") return program.worker();
  const client = await program.client();
  const figures = await COMMANDS[command](client, ...amounts.map(Number));
  await client.close();
  console.log(JSON.stringify(figures ?? null));
}

if (require.main === module) {
  main(...process.argv.slice(2)).catch((error) => {
    console.error(error);
    process.exit(1);
  });
}
