//! Whether the body of a reply is whole.
//!
//! The SDK's reader is lenient: it stops at whatever it does not understand and returns what it has read so far as a
//! success. A reply that was cut anywhere after its root tag, or in which one byte is wrong, then reads as a list with
//! fewer items, and what is missing from a list looks absent (`ec2.md` §3, I6). So a body counts only if it is
//! well-formed from the first to the last byte: one root, of this operation, every element closed by its own name, and none with both text
//! and elements.

use xmlparser::{ElementEnd, Token, Tokenizer};

/// Whether a body is a whole, well-formed reply of `operation`.
pub(crate) fn is_whole(body: &[u8], operation: &str) -> bool {
    std::str::from_utf8(body).is_ok_and(|text| read(text, operation).is_some())
}

/// An element that is not closed yet.
struct Open<'a> {
    name: (&'a str, &'a str),
    text: bool,
    elements: bool,
}

/// `None` at the first thing that is out of order.
fn read(text: &str, operation: &str) -> Option<()> {
    let mut open: Vec<Open<'_>> = Vec::new();
    let mut roots = 0;
    for token in Tokenizer::from(text) {
        match token.ok()? {
            Token::ElementStart { prefix, local, .. } => {
                match open.last_mut() {
                    Some(parent) => parent.elements = true,
                    None => {
                        let root = local.as_str().strip_suffix("Response")?;
                        (root == operation && roots == 0).then_some(())?;
                        roots += 1;
                    }
                }
                let name = (prefix.as_str(), local.as_str());
                open.push(Open { name, text: false, elements: false });
            }
            Token::ElementEnd { end: ElementEnd::Close(prefix, local), .. } => {
                let closed = open.pop()?;
                // A tag whose bracket is garbled reads as text beside the others.
                let mixed = closed.text && closed.elements;
                (closed.name == (prefix.as_str(), local.as_str()) && !mixed).then_some(())?;
            }
            Token::ElementEnd { end: ElementEnd::Empty, .. } => {
                open.pop()?;
            }
            Token::Text { text } if !text.as_str().trim().is_empty() => {
                open.last_mut()?.text = true;
            }
            // None of these is part of an answer; hidden in one, it would hide an element.
            Token::Comment { .. }
            | Token::Cdata { .. }
            | Token::DtdStart { .. }
            | Token::ProcessingInstruction { .. } => return None,
            _ => {}
        }
    }
    (open.is_empty() && roots == 1).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<AResponse xmlns=\"x\"><set><item><id>a1</id>\
                         <tags/></item><item><id>b2</id></item></set><return>true</return></AResponse>\n ";

    #[test]
    fn only_the_operations_own_closing_tag_ends_a_whole_reply() {
        assert!(is_whole(WHOLE.as_bytes(), "A"));
        let trimmed = WHOLE.trim_end().as_bytes();
        for cut in 0..trimmed.len() {
            assert!(!is_whole(&trimmed[..cut], "A"), "cut at {cut}");
        }
        for body in [
            "",
            "garbage",
            "<Response><Errors></Errors></Response>",
            "<BAResponse></BAResponse>",
            "AResponse>",
            "<AResponse></AResponse><AResponse></AResponse>",
            "<AResponse></AResponse>x",
            "<AResponse><set></AResponse></set>",
            "<AResponse><!-- <item/> --></AResponse>",
            "<AResponse><?item><id>?></id></AResponse>",
        ] {
            assert!(!is_whole(body.as_bytes(), "A"), "{body}");
        }
    }

    /// Names of elements in order: what a reader could see of a body.
    fn elements(text: &str) -> Vec<String> {
        let start = |token: Result<Token<'_>, _>| match token {
            Ok(Token::ElementStart { local, .. }) => Some(local.as_str().to_owned()),
            _ => None,
        };
        Tokenizer::from(text).filter_map(start).collect()
    }

    #[test]
    fn i6_no_wrong_byte_makes_an_item_of_a_whole_reply_disappear() {
        let whole = elements(WHOLE);
        let mut refused = 0;
        for at in 0..WHOLE.len() {
            for byte in 0..=u8::MAX {
                let mut body = WHOLE.as_bytes().to_vec();
                body[at] = byte;
                if !is_whole(&body, "A") {
                    refused += 1;
                    continue;
                }
                let seen = elements(std::str::from_utf8(&body).unwrap());
                // The name of an element without content can be wrong without being noticed here; how many there are not.
                assert_eq!(seen.len(), whole.len(), "byte {byte} at {at}");
                let changed = seen.iter().zip(&whole).filter(|(a, b)| a != b).count();
                assert!(
                    changed == 0 || changed == 1 && !seen.contains(&"tags".to_owned()),
                    "{seen:?}"
                );
            }
        }
        assert!(refused > 10_000, "{refused}");
    }
}
