//! What one source file names, without its tests.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Ident, ItemEnum, ItemFn, ItemImpl, ItemMod, ItemStruct, ItemTrait, ItemType,
    ItemUse, Macro, UseTree, Visibility,
};

/// One source file.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// Lines without tests.
    pub(crate) lines: usize,
    /// The paths that its code names, as they are written.
    pub(crate) paths: BTreeSet<Vec<String>>,
    /// The types that it makes for everybody (`pub`).
    pub(crate) types: BTreeSet<String>,
    /// What it imports, by the name it has here.
    pub(crate) imports: BTreeMap<String, Vec<String>>,
}

/// Reads a file.
///
/// # Errors
/// When it is not Rust.
pub(crate) fn read(text: &str) -> Result<Source> {
    let file = syn::parse_file(text)?;
    let mut source = Source {
        lines: text.lines().count(),
        ..Source::default()
    };
    source.visit_file(&file);
    Ok(source)
}

impl Source {
    /// Whether an item is for tests only: it is left out.
    fn leaves_out(&mut self, attributes: &[Attribute], item: &impl Spanned) -> bool {
        let for_tests = |attribute: &Attribute| {
            attribute.path().is_ident("cfg")
                && attribute
                    .parse_args::<syn::Path>()
                    .is_ok_and(|condition| condition.is_ident("test"))
        };
        let out = attributes.iter().any(for_tests);
        if out {
            let span = item.span();
            let lines = span.end().line - span.start().line + 1;
            self.lines = self.lines.saturating_sub(lines);
        }
        out
    }

    fn make(&mut self, name: &Ident, visibility: &Visibility) {
        if matches!(visibility, Visibility::Public(_)) {
            self.types.insert(name.to_string());
        }
    }

    fn import(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: &Ident| [before, &[name.to_string()]].concat();
        let (path, name) = match tree {
            UseTree::Path(path) => return self.import(&path.tree, &with(&path.ident)),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, before);
                }
                return;
            }
            UseTree::Glob(_) => (before.to_vec(), None),
            UseTree::Name(name) if name.ident == "self" => {
                (before.to_vec(), before.last().cloned())
            }
            UseTree::Name(name) => (with(&name.ident), Some(name.ident.to_string())),
            UseTree::Rename(rename) => (with(&rename.ident), Some(rename.rename.to_string())),
        };
        if let Some(name) = name {
            self.imports.insert(name, path.clone());
        }
        self.paths.insert(path);
    }
}

impl<'ast> Visit<'ast> for Source {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !self.leaves_out(&item.attrs, item) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !self.leaves_out(&item.attrs, item) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if !self.leaves_out(&item.attrs, item) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !self.leaves_out(&item.attrs, item) {
            self.import(&item.tree, &[]);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        self.make(&item.ident, &item.vis);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        self.make(&item.ident, &item.vis);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.make(&item.ident, &item.vis);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast ItemType) {
        self.make(&item.ident, &item.vis);
        visit::visit_item_type(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|part| part.ident.to_string());
        self.paths.insert(names.collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        // what a macro is given may be anything: paths in it begin with one of these words
        let text = call.tokens.to_string();
        for (at, _) in text.match_indices("::") {
            let first = text[..at]
                .split_whitespace()
                .next_back()
                .unwrap_or_default();
            if matches!(first, "crate" | "super") {
                let names = text[at..]
                    .split_whitespace()
                    .step_by(2)
                    .zip(text[at..].split_whitespace().skip(1).step_by(2));
                let names = names
                    .take_while(|(colons, _)| *colons == "::")
                    .map(|(_, name)| name.to_owned());
                let path = std::iter::once(first.to_owned()).chain(names).collect();
                self.paths.insert(path);
            }
        }
        visit::visit_macro(self, call);
    }
}
