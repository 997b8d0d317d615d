"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  // --- tables: a button in every heading ---
  for (const table of document.querySelectorAll("table")) {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const falling = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", falling ? "descending" : "ascending");
        const value = (row) => row.cells[column].dataset.v;
        const numeric = [...body.rows].every((row) => !Number.isNaN(Number(value(row))));
        const order = (a, b) => {
          const [x, y] = [value(a), value(b)];
          if (x === "" || y === "") return (x === "") - (y === ""); // what is unknown comes last
          const rising = numeric ? Number(x) - Number(y) : x.localeCompare(y, undefined, { numeric: true });
          return falling ? -rising : rising;
        };
        body.append(...[...body.rows].sort(order));
      });
    });
  }

  const filter = byId("filter");
  const rows = [...document.querySelectorAll("table.files tbody tr")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  filter.closest("p").hidden = false;
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, n) => {
      row.hidden = !words.every((word) => texts[n].includes(word));
      shown += !row.hidden;
    });
    byId("count").textContent = words.length ? `${shown} of ${rows.length}` : "";
  });

  // --- the slider: pictures are those that the page has below ---
  const shots = new Map([...document.querySelectorAll("figure[data-key]")].map((f) => [f.dataset.key, f]));
  const pictures = [...document.querySelectorAll("details[data-name]")];
  const stage = byId("stage");
  const sides = { left: stage.querySelector(".left img"), right: stage.querySelector(".right img") };
  const view = { at: 50, x: 0, y: 0, z: 1 }; // at: percent; x, y: CSS pixels; z: times the stage
  const MOST = 16;

  const rate = () => document.querySelector("#rate input:checked").value;
  const size = () => pictures[byId("picture").value].dataset;
  const shot = (side) => {
    const codec = byId(side).value;
    const picture = byId("picture").value;
    return shots.get(codec === "original" ? `${picture}/original` : `${picture}/${rate()}/${codec}`);
  };

  const asked = { left: "", right: "" };
  async function show(side) {
    const source = shot(side).querySelector("img");
    const url = source.getAttribute("src");
    asked[side] = url;
    const ready = new Image(); // decoded before it is shown, so that nothing flickers
    ready.src = url;
    await ready.decode().catch(() => undefined); // a browser without this format shows its alt
    if (asked[side] !== url) return; // another one was chosen meanwhile
    sides[side].src = url;
    sides[side].alt = source.alt;
    stage.dataset[side] = source.closest("figure").dataset.key;
  }

  function choose() {
    const { width, height } = size();
    const most = Math.max(240, innerHeight * 0.78);
    stage.style.aspectRatio = `${width} / ${height}`;
    byId("viewer").style.maxWidth = `${Math.round(Math.min(most * width / height, 2 * width))}px`;
    for (const side of ["left", "right"]) {
      const caption = shot(side).querySelector("figcaption");
      byId(`said-${side}`).innerHTML = caption.innerHTML;
      stage.querySelector(side === "left" ? ".tag.l" : ".tag.r").textContent = caption.querySelector("b").textContent;
      show(side);
    }
    draw();
  }

  function draw() {
    const box = stage.getBoundingClientRect();
    view.z = clamp(view.z, 1, MOST);
    view.x = clamp(view.x, box.width * (1 - view.z), 0);
    view.y = clamp(view.y, box.height * (1 - view.z), 0);
    stage.style.setProperty("--at", `${view.at}%`);
    stage.style.setProperty("--x", `${view.x}px`);
    stage.style.setProperty("--y", `${view.y}px`);
    stage.style.setProperty("--z", view.z);
    const scale = view.z * box.width / size().width;
    stage.classList.toggle("zoomed", view.z > 1);
    stage.classList.toggle("pixels", scale >= 2);
    byId("zoom").textContent = `${Math.round(100 * scale)}%`;
    byId("slide").value = view.at;
  }

  // Whatever is at (x, y) of the stage stays there.
  function zoom(z, x, y) {
    const box = stage.getBoundingClientRect();
    x ??= box.width / 2;
    y ??= box.height / 2;
    z = clamp(z, 1, MOST);
    view.x = x - (x - view.x) * z / view.z;
    view.y = y - (y - view.y) * z / view.z;
    view.z = z;
    draw();
  }

  const zooms = {
    in: () => zoom(view.z * 1.5),
    out: () => zoom(view.z / 1.5),
    one: () => zoom(size().width / stage.getBoundingClientRect().width),
    fit: () => zoom(1),
  };
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", zooms[button.dataset.zoom]);
  }

  byId("slide").addEventListener("input", (event) => {
    view.at = Number(event.target.value);
    draw();
  });
  for (const id of ["picture", "rate", "left", "right"]) byId(id).addEventListener("change", choose);

  const move = (event) => {
    const box = stage.getBoundingClientRect();
    view.at = clamp(100 * (event.clientX - box.left) / box.width, 0, 100);
    draw();
  };
  stage.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const sliding = view.z === 1 || event.target.classList.contains("edge");
    const start = { px: event.clientX, py: event.clientY, x: view.x, y: view.y };
    const drag = (now) => {
      if (sliding) return move(now);
      view.x = start.x + now.clientX - start.px;
      view.y = start.y + now.clientY - start.py;
      draw();
    };
    const end = () => {
      stage.removeEventListener("pointermove", drag);
      stage.removeEventListener("pointerup", end);
      stage.removeEventListener("pointercancel", end);
    };
    stage.setPointerCapture(event.pointerId);
    stage.addEventListener("pointermove", drag);
    stage.addEventListener("pointerup", end);
    stage.addEventListener("pointercancel", end);
    if (sliding && event.pointerType === "mouse") move(event);
  });
  stage.addEventListener("dblclick", (event) => {
    const box = stage.getBoundingClientRect();
    zoom(view.z > 1 ? 1 : Math.max(3, 2 * size().width / box.width), event.clientX - box.left, event.clientY - box.top);
  });
  stage.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // plain wheels scroll the page
    event.preventDefault();
    const box = stage.getBoundingClientRect();
    zoom(view.z * Math.exp(-event.deltaY / 200), event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });

  const codecs = (step) => {
    const select = byId("right");
    const count = select.options.length;
    select.selectedIndex = (select.selectedIndex + step + count) % count;
    choose();
  };
  const keys = {
    "+": zooms.in, "=": zooms.in, "-": zooms.out, "0": zooms.fit, "1": zooms.one,
    "[": () => codecs(-1), "]": () => codecs(1),
    ArrowLeft: () => pan(1, 0), ArrowRight: () => pan(-1, 0),
    ArrowUp: () => pan(0, 1), ArrowDown: () => pan(0, -1),
  };
  function pan(x, y) {
    if (view.z === 1 && x) view.at = clamp(view.at - 2 * x, 0, 100); // nothing to pan: the border moves
    view.x += 40 * x;
    view.y += 40 * y;
    draw();
  }
  stage.addEventListener("keydown", (event) => {
    const scrolls = view.z === 1 && (event.key === "ArrowUp" || event.key === "ArrowDown");
    if (!(event.key in keys) || scrolls || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });

  byId("look").hidden = false;
  choose();
  new ResizeObserver(draw).observe(stage);
})();
