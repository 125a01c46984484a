"use strict";
// Shows the pictures of one kind, or of one block, and each of them large. Without this script the page shows them all,
// and each is a link to its file. The choice is stored after the # of the address.

(() => {
  const form = document.getElementById("choice");
  const sections = [...document.querySelectorAll("main > section")];
  const layer = document.getElementById("layer");
  const before = document.getElementById("before");
  const after = document.getElementById("after");
  const inOrder = new Map([...document.querySelectorAll(".pictures")].map((each) => [each, [...each.children]]));
  const dark = matchMedia("(prefers-color-scheme: dark)");

  /** Show what the form says. A kind that was chosen shows its pictures of all blocks too, everything at once does not. */
  function show() {
    const kind = form.elements.kind.value;
    const block = layer.value;
    for (const section of sections) {
      section.hidden = kind !== "all" && kind !== section.dataset.kind;
      let left = 0;
      for (const part of section.querySelectorAll("[data-layer]")) {
        const own = part.dataset.layer;
        part.hidden = block !== "all" && own !== block && (own !== "" || kind === "all");
        left += part.hidden ? 0 : 1;
      }
      if (kind === "all" && left === 0) section.hidden = true;
      const pictures = section.querySelector(".pictures");
      if (!pictures) continue;
      pictures.classList.toggle("one", block !== "all");
      // A chosen block comes before what shows all of them.
      const all = inOrder.get(pictures);
      const own = all.filter((figure) => block !== "all" && figure.dataset.layer === block);
      pictures.append(...own, ...all.filter((figure) => !own.includes(figure)));
    }
    before.disabled = layer.selectedIndex === 0;
    after.disabled = layer.selectedIndex === layer.options.length - 1;
  }

  /** Take over what the address says, as far as it can be chosen here. */
  function read() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const wanted = (name, choices) => (choices.includes(asked.get(name)) ? asked.get(name) : "all");
    form.elements.kind.value = wanted("kind", [...form.elements.kind].map((choice) => choice.value));
    layer.value = wanted("layer", [...layer.options].map((choice) => choice.value));
    show();
  }

  function changed() {
    location.replace(`#${new URLSearchParams({ kind: form.elements.kind.value, layer: layer.value })}`);
    show();
  }

  function step(by) {
    layer.selectedIndex = Math.min(Math.max(layer.selectedIndex + by, 0), layer.options.length - 1);
    changed();
  }

  form.addEventListener("change", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  before.addEventListener("click", () => step(-1));
  after.addEventListener("click", () => step(1));
  addEventListener("hashchange", read);

  const viewer = document.getElementById("viewer");
  const picture = document.getElementById("viewer-picture");
  const size = document.getElementById("size");
  const room = document.getElementById("viewer-room");
  let links = [];
  let index = 0;

  function full(on) {
    viewer.classList.toggle("full", on);
    size.setAttribute("aria-pressed", String(on));
    room.scrollTo(0, 0);
  }

  /** Show one of the pictures that the page shows now; before the first one comes the last. */
  function turn(to) {
    index = (to + links.length) % links.length;
    const shown = links[index].querySelector("img");
    picture.src = dark.matches ? links[index].dataset.dark : links[index].getAttribute("href");
    picture.alt = shown.alt;
    const title = links[index].closest("figure").querySelector("figcaption").textContent;
    document.getElementById("viewer-title").textContent = `${title} (${index + 1} of ${links.length})`;
    full(false);
  }

  document.querySelector("main").addEventListener("click", (event) => {
    const link = event.target.closest("figure a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    links = [...document.querySelectorAll("figure a")].filter((each) => each.offsetParent !== null);
    turn(links.indexOf(link));
    viewer.showModal();
    room.focus();
  });
  document.getElementById("previous").addEventListener("click", () => turn(index - 1));
  document.getElementById("following").addEventListener("click", () => turn(index + 1));
  size.addEventListener("click", () => full(!viewer.classList.contains("full")));
  picture.addEventListener("click", () => full(!viewer.classList.contains("full")));
  viewer.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    // In full size these keys scroll.
    if (by && !viewer.classList.contains("full")) {
      event.preventDefault();
      turn(index + by);
    }
  });
  viewer.addEventListener("close", () => links[index].focus());

  // Paper gets light pictures, which must be there before: a browser prints without waiting for them.
  if (dark.matches) for (const link of document.querySelectorAll("figure a")) new Image().src = link.href;

  form.hidden = false;
  read();
})();
