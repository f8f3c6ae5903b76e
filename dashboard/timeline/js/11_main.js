// Called by Streamlit when the component appears, and again with new data or another theme.

const VIEWERS = new WeakMap();

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".timeline");
  if (!root || !data) return undefined;
  if (!VIEWERS.has(root)) VIEWERS.set(root, new Viewer(root));
  const viewer = VIEWERS.get(root);
  viewer.update(data, root, (name, value) => setTriggerValue(name, value));
  return () => viewer.dispose();
}
