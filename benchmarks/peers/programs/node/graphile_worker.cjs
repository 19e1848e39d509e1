// graphile-worker: jobs wake its worker with NOTIFY. BENCH_LOCAL_QUEUE: the size of its local queue, with completions
// that are written in batches; unset for its defaults.
"use strict";

const { Logger, makeWorkerUtils, run, runMigrations } = require("graphile-worker");
const { append } = require("./main.cjs");

const SLOTS = 10;
const STEPS = 5;
const connectionString = process.env.BENCH_PEER_URL;
const logger = new Logger(() => () => {});
const size = Number(process.env.BENCH_LOCAL_QUEUE ?? 0);
const inBatches = size ? { localQueue: { size }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } : {};

exports.prepare = () => runMigrations({ connectionString, logger });

exports.worker = () =>
  run({
    logger,
    preset: { worker: { connectionString, concurrentJobs: SLOTS, ...inBatches } },
    taskList: {
      value: async () => append(),
      step: async ({ number }, { addJob }) => {
        if (number < STEPS) await addJob("step", { number: number + 1 });
        else append();
      },
    },
  });

exports.client = async () => {
  const utils = await makeWorkerUtils({ connectionString, logger });
  return {
    enqueue: () => utils.addJob("value", {}),
    enqueueMany: (count) => utils.addJobs(Array.from({ length: count }, () => ({ identifier: "value", payload: {} }))),
    startChain: () => utils.addJob("step", { number: 1 }),
    close: () => utils.release(),
  };
};
