//! Pages that play something frame by frame: what they have in common, which is the player, its buttons and how it looks. A film
//! of its own has a style, a stage and a script.

use anyhow::Result;
use serde::Serialize;

use crate::html::{self, escape};

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("player.css");
const CONTROLS: &str = include_str!("controls.html");
const PLAYER: &str = include_str!("player.js");

/// What is said around a film.
pub struct Words<'a> {
    /// At the top.
    pub title: &'a str,
    /// What one must know to follow.
    pub notes: &'a str,
    /// What came of it.
    pub closing: &'a str,
    /// Where what is shown comes from.
    pub origin: &'a str,
}

/// A page of these parts: `<style>`, the stage, `<script>`. The script gets `film`, which has `frames` with a `title` each.
pub fn page(parts: &str, words: &Words<'_>, film: &impl Serialize) -> Result<String> {
    let parts = parts.trim().strip_prefix("<style>\n").and_then(|parts| parts.strip_suffix("\n</script>"));
    let (style, rest) = parts.and_then(|parts| parts.split_once("\n</style>\n")).expect("a film has a style");
    let (stage, script) = rest.split_once("\n<script>\n").expect("a film has a script");
    let fields = [
        ("{{player-style}}", STYLE.trim_end().to_owned()),
        ("{{style}}", style.to_owned()),
        ("{{controls}}", CONTROLS.trim_end().to_owned()),
        ("{{stage}}", stage.to_owned()),
        ("{{player}}", PLAYER.trim_end().to_owned()),
        ("{{script}}", script.to_owned()),
        ("{{title}}", escape(words.title)),
        ("{{notes}}", escape(words.notes)),
        ("{{closing}}", escape(words.closing)),
        ("{{origin}}", escape(words.origin)),
        ("{{version}}", escape(env!("CARGO_PKG_VERSION"))),
        // Whatever is in it, it must not end the script.
        ("{{film}}", serde_json::to_string(film)?.replace('<', "\\u003c")),
    ];
    Ok(html::fill(TEMPLATE, &fields))
}
