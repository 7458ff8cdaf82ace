//! nf_tables by netlink: tables, chains, rules, sets, and transactions that change them at once or not at all.
//!
//! Only what davit's own tables are made of (spec network.md 3.9 and 11). The numbers are those of
//! linux/netfilter/nf_tables.h.

mod expression;
mod held;

pub use expression::{Expression, Field, Slot};
pub use held::HeldTable;

use crate::message::{Message, attribute, attributes, name};
use crate::socket::{CREATE, DUMP, REQUEST, SILENT, Socket};
use nix::libc;
use nix::sys::socket::SockProtocol;
use std::io;
use std::time::Duration;

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;

const NEWTABLE: u16 = 0;
const GETTABLE: u16 = 1;
const DELTABLE: u16 = 2;
const NEWCHAIN: u16 = 3;
const GETCHAIN: u16 = 4;
const DELCHAIN: u16 = 5;
const NEWRULE: u16 = 6;
const DELRULE: u16 = 8;
const NEWSET: u16 = 9;
const GETSET: u16 = 10;
const DELSET: u16 = 11;
const NEWSETELEM: u16 = 12;
const GETSETELEM: u16 = 13;
const DELSETELEM: u16 = 14;

const TABLE_NAME: u16 = 1;
const TABLE_USERDATA: u16 = 6;

const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;

const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;

const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LENGTH: u16 = 5;
const SET_DATA_TYPE: u16 = 6;
const SET_DATA_LENGTH: u16 = 7;
const SET_DESCRIPTION: u16 = 9;
const SET_ID: u16 = 10;
const DESCRIPTION_SIZE: u16 = 1;

const FLAG_INTERVAL: u32 = 0x4;
const FLAG_MAP: u32 = 0x8;
const FLAG_TIMEOUT: u32 = 0x10;
const FLAG_EVAL: u32 = 0x20;

const ELEMENTS_TABLE: u16 = 1;
const ELEMENTS_SET: u16 = 2;
const ELEMENTS: u16 = 3;
const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
const ELEMENT_FLAGS: u16 = 3;
const INTERVAL_END: u32 = 1;
const LIST_ELEMENT: u16 = 1;

const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;

/// The type of verdicts among those of data.
const VERDICT_TYPE: u32 = 0xffff_ff00;
/// Elements of one message: its length is a number of 16 bits.
const CHUNK: usize = 256;

/// What becomes of a packet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It goes on to the next hook.
    Accept,
    /// It vanishes.
    Drop,
    /// Back to the calling chain.
    Return,
    /// To another chain and back.
    Jump(String),
    /// To another chain for good.
    Goto(String),
}

impl Verdict {
    fn code(&self) -> i32 {
        match self {
            Self::Drop => 0,
            Self::Accept => 1,
            Self::Jump(_) => -3,
            Self::Goto(_) => -4,
            Self::Return => -5,
        }
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let code = attribute(bytes, VERDICT_CODE)?.try_into().ok()?;
        let chain = || attribute(bytes, VERDICT_CHAIN).map(name);
        match i32::from_be_bytes(code) {
            0 => Some(Self::Drop),
            1 => Some(Self::Accept),
            -3 => chain().map(Self::Jump),
            -4 => chain().map(Self::Goto),
            -5 => Some(Self::Return),
            _ => None,
        }
    }
}

/// What a map has for a key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Data {
    /// Bytes, each field padded to four.
    Value(Vec<u8>),
    /// What becomes of the packet.
    Verdict(Verdict),
}

impl Data {
    fn write(&self, to: &mut Message) {
        match self {
            Self::Value(bytes) => to.put(DATA_VALUE, bytes),
            Self::Verdict(verdict) => to.nest(DATA_VERDICT, |to| {
                to.put(VERDICT_CODE, &verdict.code().to_be_bytes());
                if let Verdict::Jump(chain) | Verdict::Goto(chain) = verdict {
                    to.put_name(VERDICT_CHAIN, chain);
                }
            }),
        };
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        if let Some(value) = attribute(bytes, DATA_VALUE) {
            return Some(Self::Value(value.to_vec()));
        }
        Verdict::read(attribute(bytes, DATA_VERDICT)?).map(Self::Verdict)
    }
}

/// An element of a set, or of a map when it has data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// The fields of the key, each padded to four bytes.
    pub key: Vec<u8>,
    /// In a set of intervals: the first key that is not in the interval any more.
    pub is_end: bool,
    /// What a map has for it.
    pub data: Option<Data>,
}

/// What a map holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values<'a> {
    /// Nothing: it is a set.
    None,
    /// Verdicts.
    Verdicts,
    /// These fields.
    Fields(&'a [Field]),
}

/// A set or map.
#[derive(Debug, Clone, Copy)]
pub struct Set<'a> {
    /// Its name in the table.
    pub name: &'a str,
    /// The fields of its keys.
    pub keys: &'a [Field],
    /// What it maps to.
    pub values: Values<'a>,
    /// Elements are the beginnings and the ends of intervals.
    pub intervals: bool,
    /// Rules enter elements, which end by themselves; at most this many.
    pub dynamic: Option<u32>,
}

/// Where a chain is called from.
#[derive(Debug, Clone, Copy)]
pub struct Hook {
    /// `filter` or `nat`.
    pub kind: &'static str,
    /// When in a packet's way.
    pub point: Point,
    /// Lower comes first.
    pub priority: i32,
}

/// The hooks of netfilter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Before the route is known.
    Prerouting = 0,
    /// For this machine.
    Input = 1,
    /// Through this machine.
    Forward = 2,
    /// From this machine.
    Output = 3,
    /// About to leave.
    Postrouting = 4,
}

/// Of which packets a table is. Numbers of a packet's header and types of fields follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpVersion {
    /// IPv4 (`ip`).
    Four,
    /// IPv6 (`ip6`).
    Six,
}

impl IpVersion {
    /// `NFPROTO_…`, which is `AF_…`.
    fn number(self) -> i32 {
        match self {
            Self::Four => libc::AF_INET,
            Self::Six => libc::AF_INET6,
        }
    }

    /// Bytes of an address.
    pub(crate) fn address_length(self) -> u32 {
        match self {
            Self::Four => 4,
            Self::Six => 16,
        }
    }
}

/// A table for the packets of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    name: String,
    version: IpVersion,
}

/// Changes that happen at once, or not at all.
#[derive(Debug)]
pub struct Transaction {
    table: String,
    version: IpVersion,
    messages: Vec<Message>,
    sets: u32,
}

/// The header of netfilter's messages.
fn header(family: i32, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    // 0, 2 or 10
    [u8::try_from(family).unwrap_or_default(), 0, high, low]
}

fn message(version: IpVersion, kind: u16, flags: u16) -> Message {
    let header = header(version.number(), 0);
    Message::new((SUBSYSTEM << 8) | kind, flags, &header)
}

/// The messages of a transaction with those around them, and the index of the last of them, which asks for an answer.
fn edges(transaction: Vec<Message>) -> (Vec<Message>, usize) {
    let edge = |kind| Message::new(kind, SILENT, &header(0, SUBSYSTEM));
    let mut messages = vec![edge(BATCH_BEGIN)];
    messages.extend(transaction);
    let answered = messages.len() - 1;
    messages[answered].flags |= REQUEST;
    messages.push(edge(BATCH_END));
    (messages, answered)
}

impl Transaction {
    fn push(&mut self, kind: u16, flags: u16) -> &mut Message {
        self.messages.push(message(self.version, kind, flags));
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Makes the table, which may be there; `mark` is kept with a new one.
    pub fn add_table(&mut self, mark: &[u8]) {
        let table = self.table.clone();
        self.push(NEWTABLE, SILENT | CREATE)
            .put_name(TABLE_NAME, &table)
            .put(TABLE_USERDATA, mark);
    }

    /// Removes the table with everything in it.
    pub fn delete_table(&mut self) {
        let table = self.table.clone();
        self.push(DELTABLE, SILENT).put_name(TABLE_NAME, &table);
    }

    /// Makes a chain, which may be there.
    pub fn add_chain(&mut self, chain: &str, hook: Option<Hook>) {
        let table = self.table.clone();
        let to = self.push(NEWCHAIN, SILENT | CREATE);
        to.put_name(CHAIN_TABLE, &table).put_name(CHAIN_NAME, chain);
        if let Some(hook) = hook {
            to.nest(CHAIN_HOOK, |to| {
                to.put_be32(HOOK_NUMBER, hook.point as u32)
                    .put(HOOK_PRIORITY, &hook.priority.to_be_bytes());
            })
            .put_name(CHAIN_TYPE, hook.kind);
        }
    }

    /// Removes the rules of a chain.
    pub fn flush_chain(&mut self, chain: &str) {
        let table = self.table.clone();
        self.push(DELRULE, SILENT)
            .put_name(RULE_TABLE, &table)
            .put_name(RULE_CHAIN, chain);
    }

    /// Removes a chain, to which nothing leads any more.
    pub fn delete_chain(&mut self, chain: &str) {
        self.flush_chain(chain);
        let table = self.table.clone();
        self.push(DELCHAIN, SILENT)
            .put_name(CHAIN_TABLE, &table)
            .put_name(CHAIN_NAME, chain);
    }

    /// Appends a rule to a chain.
    pub fn add_rule(&mut self, chain: &str, rule: &[Expression]) {
        const APPEND: u16 = libc::NLM_F_APPEND as u16;
        let (table, version) = (self.table.clone(), self.version);
        self.push(NEWRULE, SILENT | CREATE | APPEND)
            .put_name(RULE_TABLE, &table)
            .put_name(RULE_CHAIN, chain)
            .nest(RULE_EXPRESSIONS, |to| {
                for expression in rule {
                    to.nest(LIST_ELEMENT, |to| expression.write(to, version));
                }
            });
    }

    /// Makes a set or map, which may be there.
    pub fn add_set(&mut self, set: &Set<'_>) {
        self.sets += 1;
        let (table, id) = (self.table.clone(), self.sets);
        let mut flags = 0;
        if set.values != Values::None {
            flags |= FLAG_MAP;
        }
        if set.intervals {
            flags |= FLAG_INTERVAL;
        }
        if set.dynamic.is_some() {
            flags |= FLAG_TIMEOUT | FLAG_EVAL;
        }
        let version = self.version;
        let (kind, length) = Field::join(set.keys, version);
        let to = self.push(NEWSET, SILENT | CREATE);
        to.put_name(SET_TABLE, &table)
            .put_name(SET_NAME, set.name)
            .put_be32(SET_FLAGS, flags)
            .put_be32(SET_KEY_TYPE, kind)
            .put_be32(SET_KEY_LENGTH, length)
            .put_be32(SET_ID, id);
        match set.values {
            Values::None => {}
            Values::Verdicts => {
                to.put_be32(SET_DATA_TYPE, VERDICT_TYPE);
            }
            Values::Fields(fields) => {
                let (kind, length) = Field::join(fields, version);
                to.put_be32(SET_DATA_TYPE, kind)
                    .put_be32(SET_DATA_LENGTH, length);
            }
        }
        if let Some(size) = set.dynamic {
            to.nest(SET_DESCRIPTION, |to| {
                to.put_be32(DESCRIPTION_SIZE, size);
            });
        }
    }

    /// Removes a set or map, which no rule asks any more.
    pub fn delete_set(&mut self, set: &str) {
        let table = self.table.clone();
        self.push(DELSET, SILENT)
            .put_name(SET_TABLE, &table)
            .put_name(SET_NAME, set);
    }

    /// Enters elements. One that is there with the same data may be entered again; with other data the transaction fails.
    pub fn add_elements(&mut self, set: &str, elements: &[Element]) {
        self.elements(NEWSETELEM, SILENT | CREATE, set, elements);
    }

    /// Removes elements, by their keys. One that is not there fails the transaction.
    pub fn delete_elements(&mut self, set: &str, elements: &[Element]) {
        self.elements(DELSETELEM, SILENT, set, elements);
    }

    fn elements(&mut self, kind: u16, flags: u16, set: &str, elements: &[Element]) {
        let table = self.table.clone();
        for chunk in elements.chunks(CHUNK) {
            self.push(kind, flags)
                .put_name(ELEMENTS_TABLE, &table)
                .put_name(ELEMENTS_SET, set)
                .nest(ELEMENTS, |to| {
                    for element in chunk {
                        to.nest(LIST_ELEMENT, |to| {
                            to.nest(ELEMENT_KEY, |to| {
                                to.put(DATA_VALUE, &element.key);
                            });
                            if element.is_end {
                                to.put_be32(ELEMENT_FLAGS, INTERVAL_END);
                            }
                            if let Some(data) = &element.data {
                                to.nest(ELEMENT_DATA, |to| data.write(to));
                            }
                        });
                    }
                });
        }
    }
}

impl Table {
    /// The table of this name, there or not.
    #[must_use]
    pub fn new(name: impl Into<String>, version: IpVersion) -> Self {
        let name = name.into();
        Self { name, version }
    }

    /// Begins a transaction.
    #[must_use]
    pub fn transaction(&self) -> Transaction {
        Transaction {
            table: self.name.clone(),
            version: self.version,
            messages: Vec::new(),
            sets: 0,
        }
    }

    fn open() -> io::Result<Socket> {
        let socket = Socket::open(SockProtocol::NetlinkNetFilter)?;
        socket.allow_transactions()?;
        Ok(socket)
    }

    /// Does it. Blocks.
    ///
    /// # Errors
    /// What the kernel says to the first message that it does not like; then nothing has changed.
    pub fn commit(&self, transaction: Transaction) -> io::Result<()> {
        if transaction.is_empty() {
            return Ok(());
        }
        let (messages, answered) = edges(transaction.messages);
        Self::open()?.ask_all(&messages, answered)
    }

    /// The mark that the table was made with; `None` when there is no table.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn mark(&self) -> io::Result<Option<Vec<u8>>> {
        let mut message = message(self.version, GETTABLE, SILENT);
        message.put_name(TABLE_NAME, &self.name);
        message.flags |= REQUEST;
        match Self::open()?.ask(&message) {
            Ok(found) => Ok(found.first().map(|body| {
                let mark = body
                    .get(4..)
                    .and_then(|rest| attribute(rest, TABLE_USERDATA));
                mark.unwrap_or_default().to_vec()
            })),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The names of its chains.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn chains(&self) -> io::Result<Vec<String>> {
        self.names(GETCHAIN, CHAIN_TABLE, CHAIN_NAME)
    }

    /// The names of its sets and maps.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn sets(&self) -> io::Result<Vec<String>> {
        self.names(GETSET, SET_TABLE, SET_NAME)
    }

    fn names(&self, kind: u16, of_table: u16, of_name: u16) -> io::Result<Vec<String>> {
        let found = Self::open()?.ask(&message(self.version, kind, DUMP))?;
        let read = |body: &Vec<u8>| {
            let rest = body.get(4..)?;
            let table = attribute(rest, of_table).map(name)?;
            let named = attribute(rest, of_name).map(name)?;
            (table == self.name).then_some(named)
        };
        Ok(found.iter().filter_map(read).collect())
    }

    /// The elements of a set or map.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn elements(&self, set: &str) -> io::Result<Vec<Element>> {
        let mut message = message(self.version, GETSETELEM, DUMP);
        message
            .put_name(ELEMENTS_TABLE, &self.name)
            .put_name(ELEMENTS_SET, set);
        let found = Self::open()?.ask(&message)?;
        let mut elements = Vec::new();
        for body in &found {
            let list = body.get(4..).and_then(|rest| attribute(rest, ELEMENTS));
            for (_, element) in attributes(list.unwrap_or_default()) {
                elements.extend(read_element(element));
            }
        }
        Ok(elements)
    }
}

/// The marks of all tables of this network namespace that have one. Blocks.
///
/// # Errors
/// What the kernel says.
pub fn marks() -> io::Result<Vec<Vec<u8>>> {
    let mut marks = Vec::new();
    for version in [IpVersion::Four, IpVersion::Six] {
        for body in Table::open()?.ask(&message(version, GETTABLE, DUMP))? {
            let mark = body
                .get(4..)
                .and_then(|rest| attribute(rest, TABLE_USERDATA));
            marks.extend(mark.map(<[u8]>::to_vec));
        }
    }
    Ok(marks)
}

fn read_element(bytes: &[u8]) -> Option<Element> {
    let key = attribute(attribute(bytes, ELEMENT_KEY)?, DATA_VALUE)?;
    let flags = attribute(bytes, ELEMENT_FLAGS).and_then(|value| value.try_into().ok());
    Some(Element {
        key: key.to_vec(),
        is_end: flags.is_some_and(|flags| u32::from_be_bytes(flags) & INTERVAL_END != 0),
        data: attribute(bytes, ELEMENT_DATA).and_then(Data::read),
    })
}

/// How long an element that a rule enters lives, as netlink has it.
fn milliseconds(time: Duration) -> [u8; 8] {
    u64::try_from(time.as_millis())
        .unwrap_or(u64::MAX)
        .to_be_bytes()
}

#[cfg(test)]
mod tests;
