// The script of every page: live parts, the theme, keys, values under the pointer of a chart.
// Pages work without it. It puts no text into a page as HTML: the browser's policy forbids that.

const LIVE_MS_MIN = 1500;

// -- live parts: at a new sample the page is asked for again, and its parts are taken over

function takeOver(fresh) {
  // The page that waited for the first sample has no part of the one that is there now.
  if (document.getElementById("waiting") && !fresh.getElementById("waiting")) {
    location.reload();
    return;
  }
  for (const old of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(old.id);
    // What somebody types into, selects in or has opened is left alone.
    if (!next || old.contains(document.activeElement) && old.querySelector(":focus:not(a)")) continue;
    if (selectionIn(old) || old.querySelector("details[open], .chart.pointed")) continue;
    if (old.outerHTML === next.outerHTML) continue;
    const focused = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const adopted = document.importNode(next, true);
    old.replaceWith(adopted);
    if (focused !== null) adopted.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    watchCharts(adopted);
  }
}

function selectionIn(element) {
  const selection = document.getSelection();
  return selection !== null && !selection.isCollapsed && element.contains(selection.anchorNode);
}

function refreshed() {
  return new Promise((resolve, reject) => {
    // Unlike fetch it parses the page into a document, in which nothing runs.
    const request = new XMLHttpRequest();
    request.open("GET", location.href);
    request.setRequestHeader("X-Headrace-Live", "1");
    request.responseType = "document";
    request.timeout = 20000;
    request.onload = () => {
      if (new URL(request.responseURL).pathname !== location.pathname) location.reload();
      else if (request.status >= 500 || !request.response) reject(new Error(String(request.status)));
      else resolve(request.response);
    };
    request.onerror = request.ontimeout = () => reject(new Error("no answer"));
    request.send();
  });
}

function followSamples(url) {
  const mark = document.getElementById("live-mark");
  let events = null;
  let timer = 0;
  let last = 0;
  let running = false;
  let again = false;

  function show(text, state) {
    mark.textContent = text;
    mark.dataset.state = state;
  }

  async function refresh() {
    timer = 0;
    if (running) { again = true; return; }
    running = true;
    last = performance.now();
    try {
      takeOver(await refreshed());
      show("live", "live");
    } catch {
      show("not connected", "lost");
    }
    running = false;
    if (again) { again = false; soon(); }
  }

  function soon() {
    if (timer) return;
    timer = setTimeout(refresh, Math.max(0, LIVE_MS_MIN - (performance.now() - last)));
  }

  function open() {
    if (events !== null) return;
    events = new EventSource(url);
    events.addEventListener("sample", soon);
    events.onopen = () => show("live", "live");
    events.onerror = () => show("not connected", "lost");
  }

  // A browser keeps six connections to a host: pages that nobody sees give theirs back.
  function close() {
    events?.close();
    events = null;
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", () => { if (!document.hidden) open(); });
  if (!document.hidden) open();
}

// -- charts: the value under the pointer

function watchCharts(root) {
  for (const chart of root.querySelectorAll(".chart[data-points]")) {
    const plot = chart.querySelector(".plot");
    const output = chart.querySelector("output");
    const cursor = chart.querySelector(".cursor");
    const points = JSON.parse(chart.dataset.points);
    if (!plot || points.length < 2) continue;
    const now = output.textContent;
    const [start, end] = [points[0][0], points[points.length - 1][0]];
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
      const at = start + share * (end - start);
      const nearest = points.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best));
      const x = (nearest[0] - start) / (end - start) * 600;
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      chart.classList.add("pointed");
      output.textContent = `${nearest[1]} at ${new Date(nearest[0]).toLocaleTimeString()}`;
    });
    plot.addEventListener("pointerleave", () => {
      chart.classList.remove("pointed");
      output.textContent = now;
    });
  }
}

// -- the theme: that of the system, or the other one

function offerThemes() {
  const button = document.getElementById("theme-switch");
  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");

  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches;
  }

  function label() {
    button.textContent = isDark() ? "Light" : "Dark";
    button.title = `Use the ${isDark() ? "light" : "dark"} theme`;
  }

  button.hidden = false;
  label();
  prefersDark.addEventListener("change", label);
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    document.querySelector('meta[name="color-scheme"]').content = root.dataset.theme;
    const secure = location.protocol === "https:" ? "; Secure" : "";
    document.cookie = `headrace-theme=${root.dataset.theme}; Path=/; Max-Age=31536000; SameSite=Strict${secure}`;
    label();
  });
}

// -- keys: / goes to the search of the page, Escape leaves it

function listenForKeys() {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const field = document.getElementById("q");
      if (field) {
        event.preventDefault();
        field.focus();
        field.select();
      }
    } else if (event.key === "Escape" && typing) {
      event.target.blur();
    }
  });
}

watchCharts(document);
offerThemes();
listenForKeys();
for (const here of document.querySelectorAll(".sections [aria-current], .tabs [aria-current]")) {
  here.scrollIntoView({ block: "nearest", inline: "center" });
}
if (document.body.dataset.events) followSamples(document.body.dataset.events);
