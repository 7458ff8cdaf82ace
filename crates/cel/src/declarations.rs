//! Functions as the checker sees them: names, overloads, types. Written as text, read once.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use crate::types::Type;

/// One overload of a function.
#[derive(Debug, Clone)]
pub(crate) struct Overload {
    pub(crate) id: &'static str,
    pub(crate) member: bool,
    pub(crate) args: Vec<Type>,
    pub(crate) result: Type,
}

pub(crate) type Functions = HashMap<&'static str, Vec<Overload>>;

/// Sets of declarations an environment can be made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Library {
    /// Operators, conversions, strings, time: the language itself.
    Standard,
    /// `charAt`, `split`, `format` and others on strings.
    Strings,
    /// `isSorted`, `sum`, `min`, `max`, `indexOf` on lists, and the third version of the language's
    /// list extension: `sort`, `sortBy`, `distinct`, `slice`, `flatten`, `reverse`, `lists.range`.
    Lists,
    /// `find`, `findAll`.
    Regex,
    /// `url`, `isURL` and the parts of a URL.
    Urls,
    /// `sets.contains`, `sets.equivalent`, `sets.intersects`.
    Sets,
    /// `optional.of`, `.orValue`, `?.` and so on.
    Optional,
    /// `quantity` and its arithmetic.
    Quantity,
    /// `ip`, `cidr` and their properties.
    Net,
    /// `format.dns1123Label()` and other named formats, `.validate`.
    Format,
    /// `semver` and comparisons.
    Semver,
    /// `transformList`, `transformMap` and the macros with two variables.
    TwoVariables,
    /// `authorizer`: checks of the requester's rights.
    Authorizer,
    /// `jsonpatch.escapeKey` and `JSONPatch{}` for mutating policies.
    JsonPatch,
    /// `attribute.includes(x)`: membership in a list, equality with a scalar.
    Includes,
}

impl Library {
    /// All that a Kubernetes API server of this level offers to every expression, without the
    /// authorizer, patches and the helpers of single features.
    pub const KUBERNETES: [Library; 12] = [
        Library::Standard,
        Library::Strings,
        Library::Lists,
        Library::Regex,
        Library::Urls,
        Library::Sets,
        Library::Optional,
        Library::Quantity,
        Library::Net,
        Library::Format,
        Library::Semver,
        Library::TwoVariables,
    ];

    fn text(self) -> &'static str {
        match self {
            Self::Standard => include_str!("declarations/standard.txt"),
            Self::Strings => include_str!("declarations/strings.txt"),
            Self::Lists => include_str!("declarations/lists.txt"),
            Self::Regex => include_str!("declarations/regex.txt"),
            Self::Urls => include_str!("declarations/urls.txt"),
            Self::Sets => include_str!("declarations/sets.txt"),
            Self::Optional => include_str!("declarations/optional.txt"),
            Self::Quantity => include_str!("declarations/quantity.txt"),
            Self::Net => include_str!("declarations/net.txt"),
            Self::Format => include_str!("declarations/format.txt"),
            Self::Semver => include_str!("declarations/semver.txt"),
            Self::TwoVariables => include_str!("declarations/two_variables.txt"),
            Self::Authorizer => include_str!("declarations/authorizer.txt"),
            Self::JsonPatch => include_str!("declarations/json_patch.txt"),
            Self::Includes => include_str!("declarations/includes.txt"),
        }
    }

    const ALL: [Library; 15] = [
        Library::Standard,
        Library::Strings,
        Library::Lists,
        Library::Regex,
        Library::Urls,
        Library::Sets,
        Library::Optional,
        Library::Quantity,
        Library::Net,
        Library::Format,
        Library::Semver,
        Library::TwoVariables,
        Library::Authorizer,
        Library::JsonPatch,
        Library::Includes,
    ];
}

static DECLARED: LazyLock<HashMap<Library, Vec<(&'static str, Overload)>>> = LazyLock::new(|| {
    Library::ALL
        .into_iter()
        .map(|library| (library, read(library.text())))
        .collect()
});

pub(crate) fn functions(libraries: impl IntoIterator<Item = Library>) -> Functions {
    let mut all = Functions::new();
    for library in libraries {
        for (name, overload) in DECLARED.get(&library).into_iter().flatten() {
            all.entry(name).or_default().push(overload.clone());
        }
    }
    all
}

/// Lines of `id f|m name(types) result`; `#` begins a comment.
fn read(text: &'static str) -> Vec<(&'static str, Overload)> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| overload(line).expect("the tables in this crate are well formed"))
        .collect()
}

fn overload(line: &'static str) -> Option<(&'static str, Overload)> {
    let (id, rest) = line.split_once(' ')?;
    let (kind, rest) = rest.split_once(' ')?;
    let (name, rest) = rest.split_once('(')?;
    let (args, result) = rest.rsplit_once(") ")?;
    let mut reader = Reader { text: args };
    let mut types = Vec::new();
    while !reader.text.is_empty() {
        types.push(reader.ty()?);
        reader.text = reader.text.trim_start_matches(',').trim_start();
    }
    let result = Reader { text: result }.ty()?;
    Some((
        name,
        Overload {
            id,
            member: kind == "m",
            args: types,
            result,
        },
    ))
}

struct Reader<'a> {
    text: &'a str,
}

impl Reader<'_> {
    fn ty(&mut self) -> Option<Type> {
        let end = self.text.find(['<', '>', ',']).unwrap_or(self.text.len());
        let (name, rest) = self.text.split_at(end);
        self.text = rest;
        let mut params = Vec::new();
        if let Some(rest) = self.text.strip_prefix('<') {
            self.text = rest;
            loop {
                params.push(Arc::new(self.ty()?));
                self.text = self.text.trim_start();
                if let Some(rest) = self.text.strip_prefix('>') {
                    self.text = rest;
                    break;
                }
                self.text = self.text.strip_prefix(',')?.trim_start();
            }
        }
        let mut params = params.into_iter();
        Some(match name {
            "dyn" => Type::Dyn,
            "null" => Type::Null,
            "bool" => Type::Bool,
            "int" => Type::Int,
            "uint" => Type::Uint,
            "double" => Type::Double,
            "string" => Type::String,
            "bytes" => Type::Bytes,
            "timestamp" => Type::Timestamp,
            "duration" => Type::Duration,
            "list" => Type::List(params.next()?),
            "map" => Type::Map(params.next()?, params.next()?),
            "optional" => Type::Optional(params.next()?),
            "type" => Type::Type(params.next()?),
            _ if name.len() == 1 => Type::Param(name.into()),
            _ => Type::Opaque(name.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_reads() {
        let all = functions(Library::ALL);
        assert!(all.len() > 120, "{}", all.len());
        let find = &all["find"][0];
        assert!(find.member && find.args.len() == 2);
    }
}
