//! The shared chains that elements lead to.

use crate::Network;
use std::fmt::Write;

/// Whose connections come from this node then, so that the answers find back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Masquerade {
    /// Nobody's: endpoints see the client.
    Never,
    /// All but those of pods.
    Others,
    /// Everybody's.
    Always,
}

/// The choice of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Choice {
    /// Out of how many; at least one.
    pub count: u32,
    /// Where in the map of endpoints their numbers begin.
    pub offset: u32,
    /// The packet goes to a node's port, whatever the node's address.
    pub node_port: bool,
    /// Who is masqueraded.
    pub masquerade: Masquerade,
    /// How many seconds a client keeps its endpoint.
    pub affinity: Option<u32>,
}

/// A chain. Its name says what it does, so that equal ones are one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Chain {
    /// Chooses an endpoint.
    Choose(Choice),
    /// Pods and this node choose as `inside`, all others as `outside`; nothing means that the packet vanishes.
    Split {
        /// For pods and this node.
        inside: Option<Choice>,
        /// For all others.
        outside: Option<Choice>,
    },
    /// Only these sources go on to the other chain; what all others send vanishes.
    Guard {
        /// The sources.
        sources: Vec<Network>,
        /// Where they go on.
        then: Box<Chain>,
    },
}

impl Choice {
    fn name(&self) -> String {
        let mut name = format!("choose-{}", self.count);
        if self.offset > 0 {
            name.push('l');
        }
        if self.node_port {
            name.push('p');
        }
        match self.masquerade {
            Masquerade::Never => {}
            Masquerade::Others => name.push('o'),
            Masquerade::Always => name.push('m'),
        }
        if let Some(seconds) = self.affinity {
            // a String takes everything
            let _ = write!(name, "a{seconds}");
        }
        name
    }
}

impl Chain {
    /// Its name in the table, by which it is what it is.
    #[must_use]
    pub fn name(&self) -> String {
        let of = |choice: &Option<Choice>| choice.as_ref().map_or("drop".to_owned(), Choice::name);
        match self {
            Self::Choose(choice) => choice.name(),
            Self::Split { inside, outside } => {
                format!("split-{}-{}", of(inside), of(outside)).replace("choose-", "")
            }
            Self::Guard { sources, then } => {
                // FNV-1a: equal in every run, and short, as names of chains are.
                let mut hash = 0xcbf2_9ce4_8422_2325_u64;
                let all: Vec<String> = sources.iter().map(ToString::to_string).collect();
                for byte in format!("{}>{}", all.join(","), then.name()).bytes() {
                    hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
                }
                format!("guard-{hash:016x}")
            }
        }
    }

    /// The chains that it leads to.
    #[must_use]
    pub fn leads_to(&self) -> Vec<Self> {
        match self {
            Self::Choose(_) => Vec::new(),
            Self::Split { inside, outside } => {
                let both = [inside, outside].into_iter().flatten();
                both.map(|choice| Self::Choose(*choice)).collect()
            }
            Self::Guard { then, .. } => {
                let mut chains = then.leads_to();
                chains.push((**then).clone());
                chains
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_chains_apart() {
        let choice = Choice {
            count: 3,
            offset: 0,
            node_port: false,
            masquerade: Masquerade::Others,
            affinity: None,
        };
        let mut chains = vec![Chain::Choose(choice)];
        for (offset, node_port, masquerade, affinity) in [
            (65536, false, Masquerade::Others, None),
            (0, true, Masquerade::Others, None),
            (0, false, Masquerade::Never, None),
            (0, false, Masquerade::Always, None),
            (0, false, Masquerade::Others, Some(30)),
            (0, false, Masquerade::Others, Some(31)),
        ] {
            let choice = Choice {
                count: 3,
                offset,
                node_port,
                masquerade,
                affinity,
            };
            chains.push(Chain::Choose(choice));
            chains.push(Chain::Split {
                inside: Some(choice),
                outside: None,
            });
            for sources in [vec![], vec!["10.0.0.0/8".parse().unwrap()]] {
                chains.push(Chain::Guard {
                    sources,
                    then: Box::new(Chain::Choose(choice)),
                });
            }
        }
        let mut names: Vec<String> = chains.iter().map(Chain::name).collect();
        assert!(names.iter().all(|name| name.len() < 64), "{names:?}");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), chains.len());
    }

    #[test]
    fn what_a_chain_needs_comes_first() {
        let choice = Choice {
            count: 1,
            offset: 0,
            node_port: true,
            masquerade: Masquerade::Always,
            affinity: None,
        };
        let split = Chain::Split {
            inside: Some(choice),
            outside: None,
        };
        let guard = Chain::Guard {
            sources: Vec::new(),
            then: Box::new(split.clone()),
        };
        assert_eq!(guard.leads_to(), [Chain::Choose(choice), split]);
    }
}
