//! A lesson as one page that needs nothing but itself.

use anyhow::Result;
use serde::Serialize;

use super::{Lesson, Scene};
use crate::film::{self, Words};

const PARTS: &str = include_str!("page.html");

/// What the page's script gets.
#[derive(Serialize)]
struct Film<'a> {
    frames: &'a [Scene],
}

/// The page.
pub fn page(lesson: &Lesson) -> Result<String> {
    let words = Words {
        title: &lesson.title,
        notes: &lesson.notes.join(" "),
        closing: &lesson.closing,
        origin: "The numbers were computed by the code that trains",
    };
    film::page(PARTS, &words, &Film { frames: &lesson.scenes })
}
