// Makes one tree of elements like another by changing as little as can be: focus, open details, scrolling, marked text
// and what is being typed survive.

// Whether a person has put something into a form that is not sent.
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
  attributes(old, fresh); // also of a form that is being filled: where it is sent to may have changed
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
  let place = old.firstChild; // everything before it is right
  for (const wanted of [...fresh.childNodes]) {
    while (place?.dataset?.gone === "") place = place.nextSibling;
    const key = keyOf(wanted);
    let found = key ? keyed.get(key) : place;
    while (!key && found && keyOf(found)) found = found.nextSibling; // those are found by their keys
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

// Take a node away, unless a person has typed something into it: then it only says that it is not needed any more, and
// they take it away.
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
  told.textContent = "This is not asked any more: it was answered elsewhere, or its call has ended. What you put in was not sent.";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "button";
  button.textContent = "Take it away";
  button.setAttribute("data-dismiss", "");
  part.append(told, button);
  return part;
}
