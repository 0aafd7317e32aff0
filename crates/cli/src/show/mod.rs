//! What a person sees in the terminal.

mod progress;
mod table;
mod units;

pub use progress::Progress;
pub use table::{HEADINGS, cells, table};
pub use units::{row_name, seconds};
