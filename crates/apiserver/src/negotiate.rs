//! Content negotiation: which form a client wants its answer in.

use davit_access::query::Query;
use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING, USER_AGENT};

/// Serialization of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Media {
    Json,
    Yaml,
    Protobuf,
}

/// The media type of the protobuf form.
pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

impl Media {
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => PROTOBUF,
        }
    }
}

/// What of an object is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The object or list itself.
    Object,
    /// A `Table` of the given `meta.k8s.io` version.
    Table(&'static str),
    /// `PartialObjectMetadata` or its list.
    Partial(&'static str),
}

/// The outcome of negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) media: Media,
    pub(crate) form: Form,
    pub(crate) pretty: bool,
}

impl Accepted {
    /// Whether the answer is JSON as objects are kept in it: ready bytes can be gathered.
    pub(crate) fn writes_plain_json(self) -> bool {
        self.media == Media::Json && !self.pretty
    }
}

/// Nothing the client accepts can be made (406).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotAcceptable;

/// What an endpoint offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    /// Objects, tables and partial objects.
    Objects,
    /// The same as a stream: no YAML.
    Stream,
    /// Objects of custom kinds: no protobuf for the objects themselves.
    Custom,
    /// Objects of custom kinds as a stream.
    CustomStream,
    /// Objects that are only answered, never kept: no tables and no partial objects.
    Answers,
    /// One fixed document.
    Document,
}

/// One clause of an Accept header.
#[derive(Debug)]
pub(crate) struct Clause {
    pub(crate) media: String,
    pub(crate) params: Vec<(String, String)>,
    quality: u16,
}

impl Clause {
    pub(crate) fn param(&self, name: &str) -> Option<&str> {
        self.params
            .iter()
            .find(|(held, _)| held == name)
            .map(|(_, value)| value.as_str())
    }
}

/// The clauses of all Accept headers, best first; empty when nothing is asked for.
pub(crate) fn clauses(headers: &HeaderMap) -> Vec<Clause> {
    let mut clauses: Vec<Clause> = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(clause)
        .collect();
    clauses.sort_by_key(|clause| std::cmp::Reverse(clause.quality));
    clauses
}

/// Whether a client takes gzip; with quality 0 it says that it does not.
pub(crate) fn takes_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter();
    let mut encodings = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(clause);
    encodings.any(|encoding| encoding.media == "gzip" && encoding.quality > 0)
}

fn clause(text: &str) -> Option<Clause> {
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next()?.to_ascii_lowercase();
    if media.is_empty() {
        return None;
    }
    let mut quality = 1000;
    let mut params = Vec::new();
    for part in parts {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let value = value.trim().trim_matches('"');
        if name.trim() == "q" {
            let q: f32 = value.parse().unwrap_or(0.0);
            // three digits are what the grammar of q-values allows
            quality = (q.clamp(0.0, 1.0) * 1000.0) as u16;
        } else {
            params.push((name.trim().to_ascii_lowercase(), value.to_owned()));
        }
    }
    (quality > 0).then_some(Clause {
        media,
        params,
        quality,
    })
}

/// Chooses the form of the answer.
pub(crate) fn negotiate(
    headers: &HeaderMap,
    query: &Query,
    offer: Offer,
) -> Result<Accepted, NotAcceptable> {
    let clauses = clauses(headers);
    let pretty = wants_pretty(headers, query);
    if clauses.is_empty() {
        if headers.contains_key(ACCEPT)
            && headers
                .get_all(ACCEPT)
                .iter()
                .any(|value| !value.as_bytes().is_empty())
        {
            return Err(NotAcceptable);
        }
        return Ok(Accepted {
            media: Media::Json,
            form: Form::Object,
            pretty,
        });
    }
    clauses
        .iter()
        .find_map(|clause| accept(clause, offer, pretty))
        .ok_or(NotAcceptable)
}

fn accept(clause: &Clause, offer: Offer, pretty: bool) -> Option<Accepted> {
    let media = match clause.media.as_str() {
        "application/json" | "*/*" | "application/*" => Media::Json,
        "application/yaml" if !matches!(offer, Offer::Stream | Offer::CustomStream) => Media::Yaml,
        PROTOBUF if offer != Offer::Document => Media::Protobuf,
        _ => return None,
    };
    let form = match clause.param("as") {
        None if media == Media::Protobuf
            && matches!(offer, Offer::Custom | Offer::CustomStream) =>
        {
            return None;
        }
        None => Form::Object,
        Some(_) if matches!(offer, Offer::Answers | Offer::Document) => return None,
        Some(kind) => {
            if clause.param("g") != Some("meta.k8s.io") {
                return None;
            }
            let version = match clause.param("v") {
                Some("v1") => "v1",
                Some("v1beta1") => "v1beta1",
                _ => return None,
            };
            match kind {
                "Table" if media != Media::Protobuf => Form::Table(version),
                "PartialObjectMetadata" | "PartialObjectMetadataList" => Form::Partial(version),
                _ => return None,
            }
        }
    };
    let pretty = match clause.param("pretty") {
        Some(value) => value == "1" || value == "true",
        None => pretty,
    };
    Some(Accepted {
        media,
        form,
        pretty,
    })
}

/// `?pretty` decides; without it people with a terminal or a browser get indented JSON.
pub(crate) fn wants_pretty(headers: &HeaderMap, query: &Query) -> bool {
    if let Some(pretty) = query.optional_flag("pretty") {
        return pretty;
    }
    headers
        .get(USER_AGENT)
        .and_then(|agent| agent.to_str().ok())
        .is_some_and(|agent| {
            ["curl", "Wget", "Mozilla/5.0"]
                .iter()
                .any(|known| agent.starts_with(known))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_taken_unless_it_is_refused() {
        for (encodings, taken) in [
            ("gzip", true),
            ("deflate, gzip;q=0.5", true),
            ("gzip;q=0", false),
            ("xgzip", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, encodings.parse().unwrap());
            assert_eq!(takes_gzip(&headers), taken, "{encodings}");
        }
    }

    fn form(accept: &str, offer: Offer) -> Result<Accepted, NotAcceptable> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        negotiate(&headers, &Query::default(), offer)
    }

    #[test]
    fn kubectl_gets_a_table_and_unknown_types_nothing() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;\
                       v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(
            form(kubectl, Offer::Objects).unwrap().form,
            Form::Table("v1")
        );
        assert_eq!(form(kubectl, Offer::Document).unwrap().form, Form::Object);
        assert_eq!(form(kubectl, Offer::Answers).unwrap().form, Form::Object);
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        assert_eq!(form(table, Offer::Answers), Err(NotAcceptable));
        assert_eq!(form("text/foo", Offer::Objects), Err(NotAcceptable));
        assert_eq!(form("", Offer::Objects).unwrap().media, Media::Json);
    }

    #[test]
    fn documents_have_no_protobuf_form_and_quality_counts() {
        let go = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(form(go, Offer::Objects).unwrap().media, Media::Protobuf);
        assert_eq!(form(go, Offer::Document).unwrap().media, Media::Json);
        let yaml = "application/json;q=0.5, application/yaml";
        assert_eq!(form(yaml, Offer::Objects).unwrap().media, Media::Yaml);
        assert_eq!(form(yaml, Offer::Stream).unwrap().media, Media::Json);
    }
}
