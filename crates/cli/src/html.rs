//! Pages that need nothing but themselves: a template, and what goes into its fields.

/// What pages begin with: their title, the colours and whatever else they have in common. A page's own style goes on where it
/// ends.
const HEAD: &str = include_str!("head.html");

/// Replaces `{{head}}`, then each `{{field}}` of a template. In one pass: what is filled in may itself look like a field.
pub fn fill(template: &str, fields: &[(&str, String)]) -> String {
    let template = template.replacen("{{head}}", HEAD.trim_end(), 1);
    let mut page = String::new();
    let mut rest = template.as_str();
    while let Some(start) = rest.find("{{") {
        let end = start + rest[start..].find("}}").expect("fields are closed") + 2;
        let (_, content) = fields.iter().find(|(field, _)| *field == &rest[start..end]).expect("all fields are known");
        page.push_str(&rest[..start]);
        page.push_str(content);
        rest = &rest[end..];
    }
    page + rest
}

/// Makes text safe between tags and in attributes.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_in_is_not_filled_again() {
        let fields = [("{{a}}", "{{b}}".to_owned()), ("{{b}}", "x".to_owned())];
        assert_eq!(fill("<{{a}}|{{b}}>", &fields), "<{{b}}|x>");
    }
}
