//! Links of proxied web servers: what a page or a redirect says about the server itself becomes what the client sees,
//! the path of the proxy in front of it (upstream's `pkg/util/proxy` does the same).

use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use http::{HeaderMap, HeaderValue};
use lol_html::errors::RewritingError;
use lol_html::html_content::Element;
use lol_html::send::{HtmlRewriter, Settings};
use lol_html::{MemorySettings, element};
use parking_lot::Mutex;

use crate::body::BoxError;

/// How much of a page a rewriter may keep: one tag, at most.
const MEMORY: usize = 1024 * 1024;

/// Attributes whose value is a URL, by element.
const ATTRIBUTES: [(&str, &[&str]); 25] = [
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// A web server and where the client sees it.
#[derive(Debug, Clone)]
pub(super) struct Links {
    /// The path of the proxy, without a slash at its end.
    prefix: String,
    /// What the server is called in URLs of its own: its address, and the host that the client asked.
    hosts: Vec<String>,
}

impl Links {
    pub(super) fn new(prefix: &str, hosts: impl IntoIterator<Item = String>) -> Self {
        Self {
            prefix: prefix.trim_end_matches('/').to_owned(),
            hosts: hosts.into_iter().collect(),
        }
    }

    /// A URL as the client has to ask for it; nothing where it is right as it is (relative, another server's).
    fn rewritten(&self, url: &str) -> Option<String> {
        let url = url.trim_ascii();
        let lower = url.get(..8).unwrap_or(url).to_ascii_lowercase();
        let scheme = ["http://", "https://", "//"]
            .into_iter()
            .find(|scheme| lower.starts_with(scheme));
        let path = match scheme.and_then(|scheme| url.get(scheme.len()..)) {
            Some(rest) => {
                let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
                let (host, path) = rest.split_at(end);
                if !self.hosts.iter().any(|own| own.eq_ignore_ascii_case(host)) {
                    return None;
                }
                path
            }
            None if url.starts_with('/') => url,
            None => return None,
        };
        let is_seen = path.strip_prefix(&self.prefix);
        if is_seen.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#'])) {
            return scheme.map(|_| path.to_owned());
        }
        let slash = if path.starts_with('/') { "" } else { "/" };
        Some(format!("{}{slash}{path}", self.prefix))
    }

    /// A redirect to the server itself becomes one to the path under which the client sees it.
    pub(super) fn rewrite_location(&self, headers: &mut HeaderMap) {
        let location = headers.get(LOCATION).and_then(|value| value.to_str().ok());
        let Some(rewritten) = location.and_then(|location| self.rewritten(location)) else {
            return;
        };
        if let Ok(value) = HeaderValue::from_str(&rewritten) {
            headers.insert(LOCATION, value);
        }
    }

    /// Whether an answer is a page that can be read.
    pub(super) fn are_in(headers: &HeaderMap) -> bool {
        let kind = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next());
        kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/html"))
            && !headers.contains_key(CONTENT_ENCODING)
    }

    /// The page with its links rewritten, as it comes.
    pub(super) fn rewrite_page<S, E>(
        self,
        headers: &mut HeaderMap,
        page: S,
    ) -> impl Stream<Item = Result<Bytes, BoxError>> + Send + use<S, E>
    where
        S: Stream<Item = Result<Bytes, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        headers.remove(CONTENT_LENGTH);
        let state = (Box::pin(page), Some(Page::new(self)));
        futures::stream::unfold(state, |(mut source, page)| async move {
            let mut page = page?;
            loop {
                let written = match source.next().await {
                    Some(Ok(bytes)) => page.write(&bytes),
                    Some(Err(error)) => return Some((Err(error.into()), (source, None))),
                    None => return Some((page.end(), (source, None))),
                };
                match written {
                    Ok(bytes) if bytes.is_empty() => {}
                    Ok(bytes) => return Some((Ok(bytes), (source, Some(page)))),
                    Err(error) => return Some((Err(error), (source, None))),
                }
            }
        })
    }
}

type Output = Arc<Mutex<Vec<u8>>>;
type Sink = Box<dyn FnMut(&[u8]) + Send>;

/// A page on its way through.
struct Page {
    /// Missing from a tag on that is too long to be kept: it goes through as it is, and all that follows.
    rewriter: Option<HtmlRewriter<'static, Sink>>,
    output: Output,
}

impl Page {
    fn new(links: Links) -> Self {
        let output = Output::default();
        let sink = Arc::clone(&output);
        let handler = element!("*", move |element: &mut Element<'_, '_, _>| {
            rewrite_element(&links, element);
            Ok(())
        });
        let memory = MemorySettings::new()
            .with_max_allowed_memory_usage(MEMORY)
            .with_graceful_bail_out_on_memory_limit_exceeded(true);
        let settings = Settings::new_send()
            .append_element_content_handler(handler)
            .with_memory_settings(memory)
            .with_strict(false);
        let write: Sink = Box::new(move |bytes: &[u8]| sink.lock().extend_from_slice(bytes));
        Self {
            rewriter: Some(HtmlRewriter::new(settings, write)),
            output,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<Bytes, BoxError> {
        let Some(rewriter) = &mut self.rewriter else {
            return Ok(Bytes::copy_from_slice(bytes));
        };
        match rewriter.write(bytes) {
            Ok(()) => {}
            // What was kept has been written.
            Err(RewritingError::MemoryLimitExceeded(_)) => self.rewriter = None,
            Err(error) => return Err(error.into()),
        }
        Ok(std::mem::take(&mut *self.output.lock()).into())
    }

    fn end(self) -> Result<Bytes, BoxError> {
        self.rewriter.map_or(Ok(()), HtmlRewriter::end)?;
        Ok(std::mem::take(&mut *self.output.lock()).into())
    }
}

fn rewrite_element<H: lol_html::HandlerTypes>(links: &Links, element: &mut Element<'_, '_, H>) {
    let tag = element.tag_name();
    let Some((_, attributes)) = ATTRIBUTES.iter().find(|(name, _)| *name == tag) else {
        return;
    };
    for attribute in *attributes {
        let value = element.get_attribute(attribute);
        if let Some(url) = value.and_then(|value| links.rewritten(&value)) {
            // The name is one of the table's, which are all valid.
            let _set = element.set_attribute(attribute, &url);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links() -> Links {
        let hosts = ["10.1.2.3:8080".to_owned(), "cluster:6443".to_owned()];
        Links::new("/api/v1/namespaces/a/pods/p/proxy/", hosts)
    }

    #[test]
    fn urls() {
        let p = "/api/v1/namespaces/a/pods/p/proxy";
        for (url, wanted) in [
            ("/x?y#z", Some(format!("{p}/x?y#z"))),
            ("/", Some(format!("{p}/"))),
            ("x/y", None),
            ("../x", None),
            ("#top", None),
            ("", None),
            ("mailto:a@b", None),
            ("javascript:x()", None),
            ("http://10.1.2.3:8080/x", Some(format!("{p}/x"))),
            ("HTTP://10.1.2.3:8080", Some(format!("{p}/"))),
            ("//cluster:6443/x", Some(format!("{p}/x"))),
            ("https://elsewhere/x", None),
            ("//elsewhere/x", None),
            ("http://10.1.2.3:8080@elsewhere/x", None),
            ("/api/v1/namespaces/a/pods/p/proxy/x", None),
            (
                "/api/v1/namespaces/a/pods/p/proxyx",
                Some(format!("{p}{p}x")),
            ),
            (
                "https://cluster:6443/api/v1/namespaces/a/pods/p/proxy/x",
                Some(format!("{p}/x")),
            ),
            ("é", None),
        ] {
            assert_eq!(links().rewritten(url), wanted, "{url}");
        }
    }

    #[tokio::test]
    async fn pages_come_through_in_pieces() {
        let page = "<!doctype html><p>a < b<a class=x href='/one'>1</a><IMG SRC=\"/two\" alt=/no>\
                    <a href=three>3</a><script src=/four>var a = '<a href=\"/no\">';</script><!-- <a href=/no> -->";
        let wanted = "<!doctype html><p>a < b<a class=x href=\"P/one\">1</a><img src=\"P/two\" alt=/no>\
                      <a href=three>3</a><script src=\"P/four\">var a = '<a href=\"/no\">';</script><!-- <a href=/no> -->";
        for size in [1, 7, 1000] {
            let pieces: Vec<Result<Bytes, BoxError>> = page
                .as_bytes()
                .chunks(size)
                .map(|piece| Ok(Bytes::copy_from_slice(piece)))
                .collect();
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("7"));
            let rewritten =
                Links::new("P", []).rewrite_page(&mut headers, futures::stream::iter(pieces));
            let rewritten: Vec<Bytes> = rewritten.map(Result::unwrap).collect().await;
            let text = String::from_utf8(rewritten.concat()).unwrap();
            assert_eq!(text.to_lowercase(), wanted.to_lowercase());
            assert!(headers.is_empty());
        }
    }

    #[tokio::test]
    async fn a_tag_without_an_end_is_not_kept() {
        let endless =
            || std::iter::once("<a href=/x").chain(std::iter::repeat_n(" abcdefgh=i", 200_000));
        let pieces = endless().map(|piece| Ok::<_, BoxError>(Bytes::from_static(piece.as_bytes())));
        let page = links().rewrite_page(&mut HeaderMap::new(), futures::stream::iter(pieces));
        let all: Vec<Bytes> = page.map(Result::unwrap).collect().await;
        assert!(all.len() > 1000, "it comes in {} pieces", all.len());
        assert!(all.concat() == endless().collect::<String>().as_bytes());
    }
}
