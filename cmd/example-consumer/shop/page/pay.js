// Sends one payment twice at once, as a client does that has lost its answer and is impatient.
"use strict";

function pay(key, order) {
  return fetch("/payments", {method: "POST", headers: {"Idempotency-Key": key}, body: new URLSearchParams(order)});
}

function show(answer) {
  const line = document.createElement("li");
  line.dataset.status = answer.status;
  line.dataset.replayed = answer.headers.get("Idempotent-Replayed") === "true";
  line.textContent = `${answer.status} ${answer.statusText}` + (line.dataset.replayed === "true" ? ", the first answer again" : "");
  document.getElementById("answers").append(line);
}

document.getElementById("pay-twice").addEventListener("click", async () => {
  const form = new FormData(document.getElementById("form"));
  const order = {item: form.get("item"), quantity: form.get("quantity")};
  const key = crypto.randomUUID();
  await Promise.all([pay(key, order).then(show), pay(key, order).then(show)]);
});
