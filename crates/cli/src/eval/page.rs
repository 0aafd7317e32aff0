//! The evaluation as one page that needs nothing but itself.

use std::fmt::Write;
use std::io;

use ringstep_data::Dataset;

use super::judge::Verdict;
use super::text::{facts, title};
use super::{Evaluation, png};
use crate::html::{self, escape};
use crate::show::percent;

const TEMPLATE: &str = include_str!("page.html");

/// The page, with pictures of the test images that went wrong.
pub fn page(evaluation: &Evaluation, data: &Dataset) -> io::Result<String> {
    let cards: String =
        evaluation.most_wrong.iter().map(|verdict| card(verdict, evaluation, data)).collect::<io::Result<_>>()?;
    let wrong = evaluation.images - evaluation.correct;
    let about = match wrong {
        0 => "None: every test image was classified right.".to_owned(),
        _ => format!(
            "{} of the {wrong} images that were classified wrong: those whose right class got the least probability.",
            evaluation.most_wrong.len()
        ),
    };
    let fields = [
        ("{{title}}", escape(&title(evaluation))),
        ("{{weights}}", escape(&evaluation.weights)),
        ("{{version}}", escape(env!("CARGO_PKG_VERSION"))),
        ("{{facts}}", facts(evaluation).iter().map(|[name, value, about]| tile(name, value, about)).collect()),
        ("{{matrix}}", matrix(evaluation)),
        ("{{about}}", escape(&about)),
        ("{{cards}}", cards),
        ("{{attribution}}", escape(&format!("{}: {}.", data.name, data.licence))),
    ];
    Ok(html::fill(TEMPLATE, &fields))
}

fn tile(name: &str, value: &str, about: &str) -> String {
    let [name, value, about] = [name, value, about].map(escape);
    format!("<div class=\"tile\"><dt>{name}</dt><dd>{value}<small>{about}</small></dd></div>")
}

/// The matrix, each count coloured by its share of its row; beside it recall, below it precision.
fn matrix(evaluation: &Evaluation) -> String {
    let Evaluation { classes, confusion, .. } = evaluation;
    let margin = |share: Option<f64>| share.map_or_else(|| "–".to_owned(), |share| format!("{:.1}", 100.0 * share));
    let mut html = String::from("<table class=\"matrix\"><thead><tr><th></th>");
    for class in classes {
        let _ = write!(html, "<th scope=\"col\"><span>{}</span></th>", escape(class));
    }
    html.push_str("<th scope=\"col\"><span>recall, %</span></th></tr></thead><tbody>");
    for (label, row) in confusion.rows().enumerate() {
        let name = escape(&classes[label]);
        let all: usize = row.iter().sum();
        let _ = write!(html, "<tr><th scope=\"row\">{name}</th>");
        for (predicted, &count) in row.iter().enumerate() {
            html += &cell(&name, &escape(&classes[predicted]), label == predicted, count, all);
        }
        let _ = write!(html, "<td class=\"margin\">{}</td></tr>", margin(confusion.recall(label)));
    }
    html.push_str("</tbody><tfoot><tr><th scope=\"row\">precision, %</th>");
    for class in 0..confusion.columns() {
        let _ = write!(html, "<td class=\"margin\">{}</td>", margin(confusion.precision(class)));
    }
    html + "<td></td></tr></tfoot></table>"
}

fn cell(label: &str, predicted: &str, right: bool, count: usize, all: usize) -> String {
    if count == 0 {
        return "<td class=\"none\">·</td>".to_owned();
    }
    // Errors are few: their root shows where they are.
    let share = count as f64 / all as f64;
    let strength = if right { share } else { share.sqrt() };
    let kind = if right { "right" } else { "wrong" };
    let strong = if strength > 0.85 { " strong" } else { "" };
    let said = if right { "recognised".to_owned() } else { format!("taken for {predicted}") };
    format!(
        "<td class=\"{kind}{strong}\" style=\"--share:{:.0}%\" title=\"{label}: {count} of {all} {said}\">{count}</td>",
        100.0 * strength
    )
}

/// One image: what it is, and what the model took it for.
fn card(verdict: &Verdict, evaluation: &Evaluation, data: &Dataset) -> io::Result<String> {
    let &Verdict { image, label, predicted, probability, .. } = verdict;
    let uri = png::data_uri(data.test.shape, data.test.image(image))?;
    let [right, said] = [label, predicted].map(|class| escape(&evaluation.classes[class]));
    Ok(format!(
        "<figure><img src=\"{uri}\" alt=\"test image {image}\"><figcaption>is <b>{right}</b> <i>{}</i><br>\
         taken for <b>{said}</b> <i>{}</i><br><small>image {image}</small></figcaption></figure>",
        percent(verdict.probability_of_label()),
        percent(probability),
    ))
}
