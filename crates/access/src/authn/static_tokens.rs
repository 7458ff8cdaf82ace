//! Static bearer tokens, the `--token-auth-file` of Kubernetes.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use crate::user::UserInfo;

/// One line of a token file.
#[derive(Clone, PartialEq, Eq)]
pub struct StaticToken {
    /// The bearer token.
    pub token: String,
    /// User name.
    pub user: String,
    /// User id; may be empty.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
}

impl std::fmt::Debug for StaticToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StaticToken")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// A line of a token file that cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("token file line {line}: {detail}")]
pub struct TokenFileError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub detail: &'static str,
}

/// Reads the CSV form `token,user,uid,"group1,group2"` (the groups are optional).
///
/// # Errors
/// For lines with fewer than three columns, an empty token, or a token given twice.
pub fn parse_token_file(text: &str) -> Result<Vec<StaticToken>, TokenFileError> {
    let mut tokens: Vec<StaticToken> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let fail = |detail| TokenFileError {
            line: line_number,
            detail,
        };
        let columns = split_csv(line).ok_or_else(|| fail("a quote is not closed"))?;
        let [token, user, uid, rest @ ..] = columns.as_slice() else {
            return Err(fail("token, user name and user uid are required"));
        };
        if token.is_empty() {
            return Err(fail("the token is empty"));
        }
        if tokens.iter().any(|known| known.token == *token) {
            return Err(fail("the token is given twice"));
        }
        let groups = rest
            .first()
            .map(|groups| {
                groups
                    .split(',')
                    .map(str::trim)
                    .filter(|g| !g.is_empty())
                    .map(str::to_owned)
            })
            .into_iter()
            .flatten()
            .collect();
        tokens.push(StaticToken {
            token: token.clone(),
            user: user.clone(),
            uid: uid.clone(),
            groups,
        });
    }
    Ok(tokens)
}

fn split_csv(line: &str) -> Option<Vec<String>> {
    let mut columns = Vec::new();
    let mut column = String::new();
    let mut quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                column.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => columns.push(std::mem::take(&mut column).trim().to_owned()),
            c => column.push(c),
        }
    }
    columns.push(column.trim().to_owned());
    (!quoted).then_some(columns)
}

/// Tokens by their digest, so that a look-up takes the same time however much of it is right.
pub(super) struct StaticTokens(HashMap<[u8; 32], UserInfo>);

impl StaticTokens {
    pub(super) fn new(tokens: &[StaticToken]) -> Self {
        let users = tokens.iter().map(|token| {
            let groups: Vec<&str> = token.groups.iter().map(String::as_str).collect();
            let mut user = UserInfo::new(&token.user, &groups);
            user.uid.clone_from(&token.uid);
            (digest(&token.token), user)
        });
        Self(users.collect())
    }

    pub(super) fn find(&self, token: &str) -> Option<UserInfo> {
        self.0.get(&digest(token)).cloned()
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_csv_form_is_read() {
        let tokens = parse_token_file("t1,alice,u1,\"g1,g2\"\n\nt2,bob,u2\n").unwrap();
        assert_eq!(tokens[0].groups, ["g1", "g2"]);
        assert_eq!(tokens[1].user, "bob");
        assert_eq!(parse_token_file("t1,alice").unwrap_err().line, 1);
        assert!(parse_token_file("t,a,b\nt,c,d").is_err());
    }

    #[test]
    fn a_known_token_gives_its_user_with_system_authenticated() {
        let tokens = StaticTokens::new(&parse_token_file("t1,alice,u1,g1").unwrap());
        let user = tokens.find("t1").unwrap();
        assert_eq!(user.groups, ["g1", crate::user::AUTHENTICATED]);
        assert!(tokens.find("t").is_none());
    }
}
