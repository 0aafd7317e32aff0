// Plays the frames of a film: buttons, slider, keys and the address choose one.
const film = JSON.parse(document.getElementById("film").textContent);
const id = (name) => document.getElementById(name);
const still = matchMedia("(prefers-reduced-motion: reduce)");
const speed = () => +id("speed").value;
const make = (parent, kind, name, text) => {
  const node = parent.appendChild(document.createElement(kind));
  node.className = name;
  if (text !== undefined) node.textContent = text;
  return node;
};

// name: what a frame is called. show(at, before): draws a frame, after another. travel(next): sets in motion what leads to a
// frame, and returns the motions, with the nodes that fly; when the first is over, the frame is drawn. rest(): milliseconds
// from one frame to the next.
const play = ({ name, show, travel = () => [], rest }) => {
  const frames = film.frames, last = frames.length - 1;
  let at = 0, playing = false, flight = [], pause = null;

  // Ends what is on its way, wherever it is.
  const land = () => {
    clearTimeout(pause);
    flight.forEach(({ chip, motion }) => { motion.cancel(); chip?.remove(); });
    flight = [];
  };
  const draw = (frame) => {
    land();
    const before = at;
    at = Math.min(last, Math.max(0, frame));
    show(at, before);
    id("title").textContent = frames[at].title;
    id("slider").value = at;
    id("slider").setAttribute("aria-valuetext", frames[at].title);
    id("first").disabled = id("back").disabled = at === 0;
    id("step").disabled = id("last").disabled = at === last;
    history.replaceState(null, "", `#${name}=${at}`);
  };
  // The next frame is reached: goes on if it plays.
  const arrive = () => {
    draw(at + 1);
    if (playing && at === last) setPlaying(false);
    else if (playing) pause = setTimeout(go, rest() / speed());
  };
  const go = () => {
    land();
    id("title").textContent = frames[at + 1].title;
    flight = still.matches ? [] : travel(at + 1);
    if (flight.length) flight[0].motion.onfinish = arrive; else arrive();
  };
  const setPlaying = (now) => {
    playing = now;
    if (!now) clearTimeout(pause);
    id("play").classList.toggle("playing", now);
    id("play").setAttribute("aria-label", now ? "Pause" : "Play");
  };
  const actions = {
    play: () => {
      setPlaying(!playing);
      if (flight.length) return flight.forEach(({ motion }) => playing ? motion.play() : motion.pause());
      if (playing && at === last) { draw(0); pause = setTimeout(go, rest() / speed()); } else if (playing) go();
    },
    // A second press while things move shows where they get.
    step: () => {
      setPlaying(false);
      if (flight.length) draw(at + 1); else if (at < last) go();
    },
    back: () => { setPlaying(false); draw(flight.length ? at : at - 1); },
    first: () => { setPlaying(false); draw(0); },
    last: () => { setPlaying(false); draw(last); },
  };
  for (const action of Object.keys(actions)) id(action).addEventListener("click", actions[action]);
  const slider = id("slider"), word = name[0].toUpperCase() + name.slice(1);
  slider.max = last;
  slider.title = word;
  slider.setAttribute("aria-label", word);
  slider.addEventListener("input", () => { setPlaying(false); draw(+slider.value); });

  const keys = { " ": "play", ArrowRight: "step", ArrowLeft: "back", Home: "first", End: "last" };
  addEventListener("keydown", (event) => {
    const action = keys[event.key], on = event.target.tagName;
    if (!action || event.ctrlKey || event.altKey || event.metaKey || on === "SELECT") return;
    // A focused button takes the space itself, and the slider the arrows.
    if (event.key === " " ? on === "BUTTON" : on === "INPUT") return;
    event.preventDefault();
    actions[action]();
  });
  const fromAddress = () => { setPlaying(false); draw(parseInt(location.hash.replace(`#${name}=`, ""), 10) || 0); };
  addEventListener("hashchange", fromAddress);
  fromAddress();
};
