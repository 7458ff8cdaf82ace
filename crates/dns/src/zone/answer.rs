//! What the zone answers.

use std::collections::HashSet;
use std::net::IpAddr;

use hickory_proto::op::Query;
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use super::lookup::{Node, Target};
use super::{Zone, reverse};

/// The most records of a section: no message of 65 535 bytes holds more, 16 bytes being the least for an address.
pub const MAX_RECORDS: usize = 4096;

/// The version of the specification that is followed (DNS specification 1.1.0, 2.2).
const VERSION: &str = "1.1.0";

/// How long the version may be kept (DNS specification 1.1.0, 2.2).
const VERSION_TTL: u32 = 28_800;

/// The longest chain of aliases that is followed (spec network.md 6.2 rule 5).
const MAX_ALIASES: usize = 10;

/// What is to be answered (spec network.md 6.2).
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Records, and the addresses of the names they point to.
    Records {
        /// The answer section.
        answers: Vec<Record>,
        /// The additional section.
        additional: Vec<Record>,
    },
    /// The name exists, without records of this type.
    NoData {
        /// The aliases that led to the name.
        aliases: Vec<Record>,
        /// The SOA record for the authority section.
        soa: Box<Record>,
    },
    /// There is no such name.
    NxDomain {
        /// The aliases that led to the name.
        aliases: Vec<Record>,
        /// The SOA record for the authority section.
        soa: Box<Record>,
    },
    /// The name may exist: not all objects are known yet.
    ServFail,
    /// Zone transfers and other classes.
    Refused,
    /// The name is an alias of one outside the zone, where the forwarder continues.
    Alias {
        /// The aliases so far.
        answers: Vec<Record>,
        /// The name to ask others for.
        target: Name,
    },
    /// Not a name of the cluster, nor an address of it.
    NotInZone,
}

impl Zone {
    /// Answers a question, in time that depends on the answer only.
    #[must_use]
    pub fn answer(&self, query: &Query) -> Answer {
        if matches!(query.query_type, RecordType::AXFR | RecordType::IXFR)
            || query.query_class != DNSClass::IN
        {
            return Answer::Refused;
        }
        if self.origin.zone_of(&query.name) {
            return self.answer_inside(query);
        }
        match reverse::address_of(&query.name) {
            Some(address) => self.answer_reverse(query, address),
            None => Answer::NotInZone,
        }
    }

    /// Follows aliases from name to name (spec network.md 6.2 rule 5).
    fn answer_inside(&self, query: &Query) -> Answer {
        let mut answers: Vec<Record> = Vec::new();
        let mut name = query.name.clone();
        while answers.len() < MAX_ALIASES {
            if !self.origin.zone_of(&name) {
                return Answer::Alias {
                    answers,
                    target: name,
                };
            }
            let target = match self.locate(&name) {
                Node::Alias(target) => target,
                other => return self.conclude(other, query.query_type, &name, answers),
            };
            let seen = answers.iter().any(|record| record.name == name);
            if seen {
                break;
            }
            let alias = RData::CNAME(CNAME(target.clone()));
            answers.push(Record::from_rdata(name, self.ttl, alias));
            if query.query_type == RecordType::CNAME {
                break;
            }
            name = target.clone();
        }
        Answer::Records {
            answers,
            additional: Vec::new(),
        }
    }

    /// Turns what is at the end of the aliases into an answer.
    fn conclude(
        &self,
        node: Node<'_>,
        kind: RecordType,
        name: &Name,
        aliases: Vec<Record>,
    ) -> Answer {
        let (mut found, additional) = match node {
            Node::Missing if self.synced => {
                return Answer::NxDomain {
                    aliases,
                    soa: Box::new(self.soa(&self.origin)),
                };
            }
            Node::Missing => return Answer::ServFail,
            Node::Empty | Node::Alias(_) => (Vec::new(), Vec::new()),
            Node::Apex => self.apex_records(kind, name),
            Node::Version if kind == RecordType::TXT => {
                let text = RData::TXT(TXT::new(vec![VERSION.to_owned()]));
                (
                    vec![Record::from_rdata(name.clone(), VERSION_TTL, text)],
                    Vec::new(),
                )
            }
            Node::Ports(targets) if kind == RecordType::SRV => self.service_records(name, targets),
            Node::Addresses(addresses) => {
                (self.address_records(name, kind, &addresses), Vec::new())
            }
            Node::Version | Node::Ports(_) => (Vec::new(), Vec::new()),
        };
        if found.is_empty() {
            return Answer::NoData {
                aliases,
                soa: Box::new(self.soa(&self.origin)),
            };
        }
        let mut answers = aliases;
        answers.append(&mut found);
        Answer::Records {
            answers,
            additional,
        }
    }

    /// Records without priority, sharing a weight of 100 (spec network.md 6.1 rule 5).
    fn service_records(&self, name: &Name, targets: Vec<Target>) -> (Vec<Record>, Vec<Record>) {
        let count = u16::try_from(targets.len()).unwrap_or(u16::MAX).max(1);
        let weight = (100 / count).max(1);
        let mut answers = Vec::with_capacity(targets.len());
        let mut additional = Vec::new();
        let mut seen = HashSet::new();
        for target in targets {
            let service = RData::SRV(SRV::new(0, weight, target.port, target.name.clone()));
            answers.push(Record::from_rdata(name.clone(), self.ttl, service));
            if additional.len() < MAX_RECORDS && seen.insert(target.name.clone()) {
                let addresses = target.addresses.iter();
                additional
                    .extend(addresses.map(|address| self.address_record(&target.name, *address)));
            }
        }
        (answers, additional)
    }

    fn apex_records(&self, kind: RecordType, name: &Name) -> (Vec<Record>, Vec<Record>) {
        match kind {
            RecordType::SOA => (vec![self.soa(name)], Vec::new()),
            RecordType::NS => {
                let server = self.server_name();
                let addresses = self
                    .servers
                    .iter()
                    .map(|address| self.address_record(&server, *address));
                let additional = addresses.collect();
                let data = RData::NS(NS(server));
                (
                    vec![Record::from_rdata(name.clone(), self.ttl, data)],
                    additional,
                )
            }
            _ => (Vec::new(), Vec::new()),
        }
    }

    fn address_records(&self, name: &Name, kind: RecordType, addresses: &[IpAddr]) -> Vec<Record> {
        let wanted = addresses.iter().filter(|address| match kind {
            RecordType::A => address.is_ipv4(),
            RecordType::AAAA => address.is_ipv6(),
            _ => false,
        });
        let records = wanted.map(|address| self.address_record(name, *address));
        records.take(MAX_RECORDS).collect()
    }

    fn address_record(&self, name: &Name, address: IpAddr) -> Record {
        let data = match address {
            IpAddr::V4(address) => RData::A(A(address)),
            IpAddr::V6(address) => RData::AAAA(AAAA(address)),
        };
        Record::from_rdata(name.clone(), self.ttl, data)
    }

    /// The names of an address: that of its Service, else those of its endpoints (CoreDNS, reverse).
    fn answer_reverse(&self, query: &Query, address: IpAddr) -> Answer {
        let mut names = self.cluster_names(address);
        if names.is_empty() {
            names = self.endpoint_names(address);
        }
        if names.is_empty() {
            // Nobody here has it: others may, but only when all of ours are known.
            return if self.synced {
                Answer::NotInZone
            } else {
                Answer::ServFail
            };
        }
        if query.query_type != RecordType::PTR {
            // The zone of the negative answer must hold the name, and the cluster domain does not.
            let labels = if address.is_ipv4() {
                "in-addr.arpa."
            } else {
                "ip6.arpa."
            };
            let apex = Name::from_ascii(labels).unwrap_or_default();
            return Answer::NoData {
                aliases: Vec::new(),
                soa: Box::new(self.soa(&apex)),
            };
        }
        let records = names.into_iter().map(|name| {
            let pointer = RData::PTR(PTR(name));
            Record::from_rdata(query.name.clone(), self.ttl, pointer)
        });
        Answer::Records {
            answers: records.collect(),
            additional: Vec::new(),
        }
    }

    fn cluster_names(&self, address: IpAddr) -> Vec<Name> {
        let owners = self
            .pointers
            .owners(address)
            .take_while(|owner| owner.endpoint.is_none());
        let names = owners.filter_map(|owner| self.below(&[&owner.service, &owner.namespace]));
        names.take(MAX_RECORDS).collect()
    }

    fn endpoint_names(&self, address: IpAddr) -> Vec<Name> {
        let mut seen = HashSet::new();
        let owners = self.pointers.owners(address).filter_map(|owner| {
            let endpoint = owner.endpoint.as_ref()?;
            let (record, _) = self
                .namespaces
                .get(&owner.namespace)?
                .service(&owner.service)?;
            if !record.has_endpoints()
                || !seen.insert((&endpoint.host, &owner.service, &owner.namespace))
            {
                return None;
            }
            self.below(&[&endpoint.host, &owner.service, &owner.namespace])
        });
        owners.take(MAX_RECORDS).collect()
    }

    /// The record that lets negative answers be kept (spec network.md 6.2 rule 2).
    fn soa(&self, apex: &Name) -> Record {
        let person = self.apex_label(&["hostmaster"]);
        let data = SOA::new(
            self.server_name(),
            person,
            self.serial,
            7200,
            1800,
            86_400,
            self.ttl,
        );
        Record::from_rdata(apex.clone(), self.ttl.min(300), RData::SOA(data))
    }

    fn server_name(&self) -> Name {
        self.apex_label(&["ns", "dns"])
    }

    fn apex_label(&self, labels: &[&str]) -> Name {
        let named = labels.iter().try_fold(Name::new(), |name, label| {
            name.append_label(label.as_bytes())
        });
        let whole = named.and_then(|name| name.append_domain(&self.origin));
        // The length of the domain was checked when the zone was made.
        whole.unwrap_or_else(|_| self.origin.clone())
    }
}
