// Makes one tree of elements equal to another with few changes: focus, open details, scrolling, selected text and
// input survive.

// Whether a form has input that is not sent.
function isTouched(form) {
  return [...form.elements].some((field) => {
    if (field.matches("input[type=checkbox], input[type=radio]")) return field.checked !== field.defaultChecked;
    if (field.matches("input:not([type=hidden]), textarea")) return field.value !== field.defaultValue;
    return false;
  });
}

function isTouchedForm(element) {
  return element.matches("form") && isTouched(element);
}

export function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  if (old.hasAttribute("data-still")) return;
  attributes(old, fresh); // also of a form being filled in: its action may have changed
  if (isTouchedForm(old)) return;
  children(old, fresh);
}

function attributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(name === "open" && old.matches("details"))) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value && !(name === "open" && old.matches("details"))) old.setAttribute(name, value);
  }
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.dataset.key || node.id || "" : "";
}

function isAlike(old, fresh) {
  return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);
}

function children(old, fresh) {
  const kept = new Set([...fresh.childNodes].map(keyOf));
  for (const node of [...old.childNodes]) if (keyOf(node) && !kept.has(keyOf(node))) drop(node);
  const keyed = new Map([...old.childNodes].filter(keyOf).map((node) => [keyOf(node), node]));
  let place = old.firstChild; // everything before it is up to date
  for (const wanted of [...fresh.childNodes]) {
    while (place?.dataset?.gone === "") place = place.nextSibling;
    const key = keyOf(wanted);
    let found = key ? keyed.get(key) : place;
    while (!key && found && keyOf(found)) found = found.nextSibling; // elements with a key are found by it
    if (found && isAlike(found, wanted)) {
      if (found === place) place = place.nextSibling;
      else old.insertBefore(found, place);
      morph(found, wanted);
    } else {
      old.insertBefore(document.importNode(wanted, true), place);
    }
  }
  while (place) place = drop(place);
}

// Remove a node, unless the user has typed something into it: then say that it is no longer needed, and let the user
// remove it.
function drop(node) {
  const next = node.nextSibling;
  if (node.nodeType === Node.ELEMENT_NODE && [node, ...node.querySelectorAll("form")].some(isTouchedForm)) {
    if (!node.hasAttribute("data-gone")) node.append(farewell());
    node.setAttribute("data-gone", "");
  } else {
    node.remove();
  }
  return next;
}

function farewell() {
  const part = document.createElement("div");
  part.className = "farewell";
  const told = document.createElement("p");
  told.textContent = "This request is no longer open: it was answered elsewhere, or its call has ended. Your input was not sent.";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "button";
  button.textContent = "Remove";
  button.setAttribute("data-dismiss", "");
  part.append(told, button);
  return part;
}
