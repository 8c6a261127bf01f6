// Pages of messages: searches and new messages as they come, copying. Texts of records are put into the
// page as text only; the server has made what acts in them visible.

const RECORDS_MAX = 500;
const list = document.getElementById("records");
const stream = document.getElementById("stream");

function element(name, kind, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
}

function size(bytes) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (bytes < 1000) return `${unit === "B" ? bytes : bytes.toFixed(1)} ${unit}`;
    bytes /= 1000;
  }
  return `${bytes.toFixed(1)} TB`;
}

function instant(ms) {
  if (ms < 0) return "–";
  const moment = new Date(ms);
  return Number.isNaN(moment.getTime()) ? String(ms) : moment.toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC");
}

// -- records: the same elements as in templates/records.html

function cellOf(name, cell) {
  const section = element("section", "cell");
  const heading = element("h3", "", `${name} `);
  const facts = [cell.kind, cell.size ? size(cell.size) : "", cell.is_cut ? "shown in part" : ""];
  heading.append(element("small", "muted", facts.filter(Boolean).join(", ")));
  section.append(heading);
  cell.views.forEach(([view, text], index) => {
    const part = element("details", "view");
    part.open = index === 0;
    const content = element("pre", "", text);
    content.tabIndex = 0;
    part.append(element("summary", "", view), content);
    section.append(part);
  });
  return section;
}

function inside(record) {
  const body = element("div", "inside");
  const open = element("a", "", "Open this record");
  open.href = record.path;
  const facts = element("p", "facts");
  facts.append(open);
  body.append(facts, cellOf("Value", record.value), cellOf("Key", record.key));
  if (record.headers.length) {
    const section = element("section", "cell");
    const pairs = element("dl", "headers");
    for (const [name, cell] of record.headers) {
      pairs.append(element("dt", "", name), element("dd", "", cell.preview));
    }
    section.append(element("h3", "", "Headers"), pairs);
    body.append(section);
  }
  offerCopies(body);
  return body;
}

function rowOf(record) {
  const row = element("details", "record");
  const summary = element("summary");
  summary.append(
    element("span", "when", instant(record.timestamp_ms)),
    element("span", "place", `${record.partition}:${record.offset}`),
    element("span", "record-key", record.key.preview),
    element("span", "preview", record.value.preview),
  );
  summary.children[2].dataset.kind = record.key.kind;
  summary.children[3].dataset.kind = record.value.kind;
  row.append(summary);
  // Most records are never opened.
  row.addEventListener("toggle", () => row.append(inside(record)), { once: true });
  return row;
}

// -- copying

function offerCopies(root) {
  for (const view of root.querySelectorAll("details.view")) {
    const button = element("button", "quiet copy", "Copy");
    button.type = "button";
    button.addEventListener("click", () => copy(view.querySelector("pre"), button));
    view.querySelector("pre").before(button);
  }
}

async function copy(content, button) {
  try {
    await navigator.clipboard.writeText(content.textContent);
    button.textContent = "Copied";
  } catch {
    // Without TLS a browser gives no clipboard: the text is selected, ready for the keys.
    getSelection().selectAllChildren(content);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

// -- streams

function run(url, { onReady, onRecords, onProgress, ended, lost }) {
  const progress = document.getElementById("progress");
  const status = document.getElementById("status");
  const stop = document.getElementById("stop");
  const events = new EventSource(url);

  function close(text) {
    // Otherwise the browser asks again, and the search begins anew.
    events.close();
    stop.hidden = progress.hidden = true;
    removeEventListener("pagehide", leave);
    if (text) status.textContent = text;
  }
  const leave = () => close("");

  stop.hidden = false;
  stop.onclick = () => close(`${status.textContent} · stopped`);
  events.addEventListener("ready", () => onReady?.(status));
  events.addEventListener("records", (event) => onRecords(JSON.parse(event.data), status));
  events.addEventListener("progress", (event) => onProgress?.(JSON.parse(event.data), progress, status));
  events.addEventListener("end", (event) => close(ended(JSON.parse(event.data).reason, status)));
  events.addEventListener("failed", (event) => {
    const problem = JSON.parse(event.data);
    close(`${problem.what} ${problem.advice}`);
    status.classList.add("lost");
  });
  events.onerror = () => close(lost);
  addEventListener("pagehide", leave);
}

function search() {
  let hits = 0;
  document.getElementById("status").textContent = "searching…";
  run(stream.dataset.search, {
    onRecords({ records }) {
      hits += records.length;
      list.append(...records.map(rowOf));
    },
    onProgress(now, progress, status) {
      progress.hidden = false;
      progress.value = now.total ? now.done / now.total : 0;
      const left = now.seconds_left === null ? "" : `, ${Math.ceil(now.seconds_left)} s left`;
      status.textContent = `${now.hits.toLocaleString("en")} found, ${now.done.toLocaleString("en")} of ${now.total.toLocaleString("en")} searched, ${size(now.bytes)}, ${now.rate.toLocaleString("en")}/s${left}`;
    },
    ended(reason, status) {
      const text = status.textContent.replace(/, \d+ s left$/, "");
      if (reason === "hits_max") return `${text} · stopped after ${hits} found`;
      return hits ? `${text} · done` : `${text} · nothing found`;
    },
    lost: "The console does not answer any more. Reload to search again.",
  });
}

function follow(button) {
  let seen = 0;
  let skipped = 0;
  button.hidden = true;
  document.getElementById("nothing")?.remove();
  document.getElementById("status").textContent = "looking for the end of the topic…";
  run(stream.dataset.tail, {
    // What is written before this may be missed.
    onReady(status) { status.textContent = "following: new messages come by themselves"; },
    onRecords(found, status) {
      seen += found.records.length;
      skipped += found.skipped;
      list.prepend(...found.records.reverse().map(rowOf));
      for (const old of [...list.children].slice(RECORDS_MAX)) old.remove();
      status.textContent = `${seen.toLocaleString("en")} new${skipped ? `, ${skipped.toLocaleString("en")} more not shown` : ""}`;
    },
    ended: () => { button.hidden = false; return "Stopped following after half an hour."; },
    lost: "The console does not answer any more. Reload to go on.",
  });
}

if (list) offerCopies(list);
if (stream) {
  const button = document.getElementById("follow");
  button.hidden = false;
  button.addEventListener("click", () => follow(button));
  if (stream.dataset.runs === "search") search();
}
