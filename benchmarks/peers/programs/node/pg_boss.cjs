// pg-boss: BENCH_BATCH is the number of jobs that each of its workers fetches and completes at once, without pauses
// while there are more; unset for its defaults.
"use strict";

const { PgBoss } = require("pg-boss");
const { append } = require("./main.cjs");

const SLOTS = 10;
const STEPS = 5;
const batchSize = Number(process.env.BENCH_BATCH ?? 0);
// With LISTEN, its workers would otherwise wait for 30 s, instead of 2 s, while no job is enqueued.
const polling = { pollingIntervalSeconds: 2, notifyPollingIntervalSeconds: 2 };
const workOptions = batchSize
  ? { ...polling, batchSize, burstWhenBatchFull: true, localConcurrency: 4 }
  : { ...polling, localConcurrency: SLOTS };

async function started(options = {}) {
  const boss = new PgBoss({ connectionString: process.env.BENCH_PEER_URL, max: SLOTS, ...options });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return boss;
}

exports.prepare = async () => {
  const boss = await started();
  await boss.createQueue("value", { notify: true });
  await boss.createQueue("step", { notify: true });
  await boss.stop();
};

exports.worker = async () => {
  const boss = await started({ useListenNotify: true });
  await boss.work("step", workOptions, async (jobs) => {
    for (const { data } of jobs) {
      if (data.number < STEPS) await boss.send("step", { number: data.number + 1 });
      else append();
    }
  });
  await boss.work("value", workOptions, async (jobs) => jobs.forEach(() => append()));
};

exports.client = async () => {
  const boss = await started({ supervise: false, schedule: false });
  return {
    enqueue: () => boss.send("value", {}),
    enqueueMany: (count) => boss.insert("value", Array.from({ length: count }, () => ({ data: {} }))),
    startChain: () => boss.send("step", { number: 1 }),
    close: () => boss.stop({ graceful: false }),
  };
};
