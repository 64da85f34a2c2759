//! Replies as a small tree, so that a fault can take elements out before they are written.

use std::fmt::{Display, Write as _};

/// One element.
#[derive(Debug, Clone)]
pub(crate) struct Xml {
    name: &'static str,
    body: Body,
}

#[derive(Debug, Clone)]
enum Body {
    Text(String),
    Children(Vec<Xml>),
}

/// `<name>value</name>`
pub(crate) fn text(name: &'static str, value: impl Display) -> Xml {
    Xml { name, body: Body::Text(value.to_string()) }
}

/// `<name>value</name>`, or nothing.
pub(crate) fn optional(name: &'static str, value: Option<impl Display>) -> Option<Xml> {
    value.map(|v| text(name, v))
}

/// `<name>children</name>`
pub(crate) fn group(name: &'static str, children: Vec<Xml>) -> Xml {
    Xml { name, body: Body::Children(children) }
}

/// `<name><item>…</item>…</name>`
pub(crate) fn list(name: &'static str, items: impl IntoIterator<Item = Vec<Xml>>) -> Xml {
    group(name, items.into_iter().map(|children| group("item", children)).collect())
}

/// `<name><item>text</item>…</name>`
pub(crate) fn texts<T: Display>(name: &'static str, items: impl IntoIterator<Item = T>) -> Xml {
    group(name, items.into_iter().map(|value| text("item", value)).collect())
}

impl Xml {
    fn write(&self, out: &mut String) {
        match &self.body {
            Body::Text(value) => {
                let _ = write!(out, "<{}>{}</{}>", self.name, escape(value), self.name);
            }
            Body::Children(children) if children.is_empty() => {
                let _ = write!(out, "<{}/>", self.name);
            }
            Body::Children(children) => {
                let _ = write!(out, "<{}>", self.name);
                for child in children {
                    child.write(out);
                }
                let _ = write!(out, "</{}>", self.name);
            }
        }
    }

    /// Takes out every element of that name, at any depth.
    fn omit(&mut self, name: &str) {
        if let Body::Children(children) = &mut self.body {
            children.retain(|child| child.name != name);
            for child in children {
                child.omit(name);
            }
        }
    }
}

/// A whole success reply.
pub(crate) fn response(
    action: &str,
    request_id: &str,
    mut body: Vec<Xml>,
    omit: &[String],
) -> String {
    for name in omit {
        body.retain(|child| child.name != name);
        for child in &mut body {
            child.omit(name);
        }
    }
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{action}Response \
         xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><requestId>{request_id}</requestId>"
    );
    for child in &body {
        child.write(&mut out);
    }
    let _ = write!(out, "</{action}Response>");
    out
}

/// A whole error reply.
pub(crate) fn error(code: &str, message: &str, request_id: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>{}</Code>\
         <Message>{}</Message></Error></Errors><RequestID>{request_id}</RequestID></Response>",
        escape(code),
        escape(message)
    )
}

fn escape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\r' => out.push_str("&#13;"),
            c => out.push(c),
        }
    }
    out
}
