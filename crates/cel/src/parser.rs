//! Recursive descent over CEL's grammar.

mod macros;

use std::sync::Arc;

use crate::ast::{Entry, Expr, Field, Id, Item, Kind};
use crate::error::{CompileError, most_faults};
use crate::lexer::{Spanned, Token, lex};
use crate::value::Value;

/// Deeper expressions are refused, as the reference implementation does.
const MAX_DEPTH: usize = 250;

const NESTED: usize = 4;

const RESERVED: [&str; 18] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
    "in",
];

const EXPECTED: &str = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, \
                        NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";

/// A parsed expression and the number of its nodes' ids.
pub(crate) struct Parsed {
    pub(crate) root: Expr,
    pub(crate) ids: Id,
}

pub(crate) fn parse(source: &[char]) -> Result<Parsed, Vec<CompileError>> {
    let tokens = lex(source).map_err(|error| vec![error])?;
    let mut parser = Parser {
        source,
        tokens,
        next: 0,
        ids: 0,
        depth: 0,
        errors: Vec::new(),
    };
    let root = parser.whole();
    match root {
        Ok(root) if parser.errors.is_empty() => Ok(Parsed {
            root,
            ids: parser.ids,
        }),
        Ok(_) => Err(parser.errors),
        Err(error) => {
            parser.errors.push(error);
            Err(parser.errors)
        }
    }
}

struct Parser<'a> {
    source: &'a [char],
    tokens: Vec<Spanned>,
    next: usize,
    ids: Id,
    depth: usize,
    /// Faults after which parsing goes on.
    errors: Vec<CompileError>,
}

type Parse<T = Expr> = Result<T, CompileError>;

impl Parser<'_> {
    fn peek(&self) -> &Token {
        &self.tokens[self.next].token
    }

    fn at(&self) -> usize {
        self.tokens[self.next].at
    }

    fn is(&self, symbol: &str) -> bool {
        matches!(self.peek(), Token::Symbol(s) if *s == symbol)
    }

    fn advance(&mut self) {
        if self.next + 1 < self.tokens.len() {
            self.next += 1;
        }
    }

    fn take(&mut self, symbol: &str) -> bool {
        let found = self.is(symbol);
        if found {
            self.advance();
        }
        found
    }

    fn expect(&mut self, symbol: &str) -> Parse<()> {
        if self.take(symbol) {
            return Ok(());
        }
        Err(self.unexpected(&format!("'{symbol}'")))
    }

    fn unexpected(&self, expected: &str) -> CompileError {
        let text = &self.tokens[self.next].text;
        self.error(
            self.at(),
            format!("Syntax error: mismatched input '{text}' expecting {expected}"),
        )
    }

    /// What stands behind a whole expression: one word is one too many, more are another expression.
    fn left_over(&self) -> CompileError {
        let following = self.tokens.get(self.next + 1);
        if following.is_none_or(|following| following.token != Token::End) {
            return self.unexpected("<EOF>");
        }
        let text = &self.tokens[self.next].text;
        self.error(
            self.at(),
            format!("Syntax error: extraneous input '{text}' expecting <EOF>"),
        )
    }

    fn error(&self, at: usize, message: impl Into<String>) -> CompileError {
        CompileError::new(self.source, at, message)
    }

    /// A fault after which parsing goes on.
    fn fault(&mut self, at: usize, message: impl Into<String>) {
        if self.errors.len() < most_faults(self.source) {
            let error = self.error(at, message);
            self.errors.push(error);
        }
    }

    fn node(&mut self, at: usize, kind: Kind) -> Expr {
        self.ids += 1;
        Expr {
            id: self.ids - 1,
            at,
            kind,
        }
    }

    fn call(&mut self, at: usize, function: &str, args: Vec<Expr>) -> Expr {
        self.node(
            at,
            Kind::Call {
                function: function.into(),
                target: None,
                args,
            },
        )
    }

    fn ident(&mut self, at: usize, name: &str) -> Expr {
        self.node(at, Kind::Ident(name.into()))
    }

    fn constant(&mut self, at: usize, value: Value) -> Expr {
        self.node(at, Kind::Const(value))
    }

    /// Nested expressions take more of the stack than chains of operators and selections.
    fn deeper(&mut self, weight: usize) -> Parse<()> {
        self.depth += weight;
        if self.depth > MAX_DEPTH {
            return Err(self.error(
                self.at(),
                format!("expression recursion limit exceeded: {MAX_DEPTH}"),
            ));
        }
        Ok(())
    }

    fn whole(&mut self) -> Parse {
        let expr = self.expr()?;
        if *self.peek() != Token::End {
            return Err(self.left_over());
        }
        Ok(expr)
    }

    fn expr(&mut self) -> Parse {
        self.deeper(NESTED)?;
        let condition = self.logical("||")?;
        let at = self.at();
        let result = if self.take("?") {
            let yes = self.logical("||")?;
            self.expect(":")?;
            let no = self.expr()?;
            self.call(at, "_?_:_", vec![condition, yes, no])
        } else {
            condition
        };
        self.depth -= NESTED;
        Ok(result)
    }

    /// Chains of `&&` and `||` become balanced trees: they may be long.
    fn logical(&mut self, symbol: &'static str) -> Parse {
        let (function, inner) = if symbol == "||" {
            ("_||_", "&&")
        } else {
            ("_&&_", "")
        };
        let mut terms = Vec::new();
        let mut places = Vec::new();
        loop {
            terms.push(if inner.is_empty() {
                self.binary(0)?
            } else {
                self.logical(inner)?
            });
            places.push(self.at());
            if !self.take(symbol) {
                break;
            }
        }
        Ok(self.balance(function, terms, &places))
    }

    fn balance(&mut self, function: &str, mut terms: Vec<Expr>, places: &[usize]) -> Expr {
        let count = terms.len();
        if count == 1 {
            return terms.remove(0);
        }
        let half = count.div_ceil(2);
        let right = terms.split_off(half);
        let left = self.balance(function, terms, &places[..half]);
        let right = self.balance(function, right, &places[half..]);
        self.call(places[half - 1], function, vec![left, right])
    }

    fn operator(&self) -> Option<(&'static str, u8)> {
        let Token::Symbol(symbol) = self.peek() else {
            return None;
        };
        Some(match *symbol {
            "<" => ("_<_", 0),
            "<=" => ("_<=_", 0),
            ">" => ("_>_", 0),
            ">=" => ("_>=_", 0),
            "==" => ("_==_", 0),
            "!=" => ("_!=_", 0),
            "in" => ("@in", 0),
            "+" => ("_+_", 1),
            "-" => ("_-_", 1),
            "*" => ("_*_", 2),
            "/" => ("_/_", 2),
            "%" => ("_%_", 2),
            _ => return None,
        })
    }

    /// Left-associative operators of this precedence and tighter.
    fn binary(&mut self, level: u8) -> Parse {
        let depth = self.depth;
        let mut left = self.unary()?;
        while let Some((function, precedence)) = self.operator().filter(|(_, p)| *p >= level) {
            let at = self.at();
            self.deeper(1)?;
            self.advance();
            let right = self.binary(precedence + 1)?;
            left = self.call(at, function, vec![left, right]);
        }
        self.depth = depth;
        Ok(left)
    }

    fn unary(&mut self) -> Parse {
        let at = self.at();
        for (symbol, function) in [("!", "!_"), ("-", "-_")] {
            if !self.is(symbol) {
                continue;
            }
            let mut count = 0;
            while self.take(symbol) {
                count += 1;
            }
            if symbol == "-"
                && count % 2 == 1
                && let Some(number) = self.negative(at)
            {
                return self.member(number);
            }
            let operand_at = self.at();
            let number = if symbol == "!" && self.take("-") {
                // after `!` a sign can only belong to a number
                let number = self.negative(operand_at);
                Some(number.ok_or_else(|| self.unexpected(EXPECTED))?)
            } else {
                None
            };
            let operand = match number {
                Some(number) => number,
                None => self.primary()?,
            };
            let operand = self.member(operand)?;
            // an even number of signs cancels out
            return Ok(if count % 2 == 1 {
                self.call(at, function, vec![operand])
            } else {
                operand
            });
        }
        let operand = self.primary()?;
        self.member(operand)
    }

    /// The number behind a minus sign, which belongs to it, so that the smallest integer can be
    /// written.
    fn negative(&mut self, at: usize) -> Option<Expr> {
        match self.peek().clone() {
            Token::Int(text) => {
                self.advance();
                Some(self.int(at, &format!("-{text}")))
            }
            Token::Float(text) => {
                self.advance();
                Some(self.float(at, &format!("-{text}")))
            }
            _ => None,
        }
    }

    fn int(&mut self, at: usize, text: &str) -> Expr {
        let (sign, digits) = match text.strip_prefix('-') {
            Some(rest) => ("-", rest),
            None => ("", text),
        };
        let hex = digits
            .strip_prefix("0x")
            .or_else(|| digits.strip_prefix("0X"));
        let (digits, radix) = hex.map_or((digits, 10), |hex| (hex, 16));
        match i64::from_str_radix(&format!("{sign}{digits}"), radix) {
            Ok(value) => self.constant(at, Value::Int(value)),
            Err(_) => {
                self.fault(at, "invalid int literal");
                self.constant(at, Value::Int(0))
            }
        }
    }

    fn float(&mut self, at: usize, text: &str) -> Expr {
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() => self.constant(at, Value::Double(value)),
            _ => {
                self.fault(at, "invalid double literal");
                self.constant(at, Value::Double(0.0))
            }
        }
    }

    fn literal(&mut self, token: Token) -> Expr {
        let at = self.at();
        self.advance();
        match token {
            Token::Int(text) => self.int(at, &text),
            Token::Uint(text) => {
                let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
                let (digits, radix) = hex.map_or((text.as_str(), 10), |hex| (hex, 16));
                if let Ok(value) = u64::from_str_radix(digits, radix) {
                    self.constant(at, Value::Uint(value))
                } else {
                    self.fault(at, "invalid uint literal");
                    self.constant(at, Value::Uint(0))
                }
            }
            Token::Float(text) => self.float(at, &text),
            Token::Str(text) => self.constant(at, Value::String(text.into())),
            Token::Bytes(bytes) => self.constant(at, Value::Bytes(bytes.into())),
            Token::Symbol("true") => self.constant(at, Value::Bool(true)),
            Token::Symbol("false") => self.constant(at, Value::Bool(false)),
            _ => self.constant(at, Value::Null),
        }
    }

    fn primary(&mut self) -> Parse {
        let at = self.at();
        let token = self.peek().clone();
        match token {
            Token::Int(_)
            | Token::Uint(_)
            | Token::Float(_)
            | Token::Str(_)
            | Token::Bytes(_)
            | Token::Symbol("true" | "false" | "null") => Ok(self.literal(token)),
            Token::Symbol("(") => {
                self.advance();
                let inner = self.expr()?;
                self.expect(")")?;
                Ok(inner)
            }
            Token::Symbol("[") => {
                self.advance();
                self.list(at)
            }
            Token::Symbol("{") => {
                self.advance();
                self.map(at)
            }
            Token::Symbol(".") => {
                self.advance();
                let Token::Ident(name) = self.peek().clone() else {
                    let text = match self.peek() {
                        Token::End => "",
                        _ => &self.tokens[self.next].text,
                    };
                    let fault = format!("Syntax error: no viable alternative at input '.{text}'");
                    return Err(self.error(self.at(), fault));
                };
                self.named(at, &format!(".{name}"))
            }
            Token::Ident(name) => self.named(at, &name),
            Token::Symbol(_) | Token::End => Err(self.unexpected(EXPECTED)),
        }
    }

    /// An identifier, a call of a function or a struct.
    fn named(&mut self, at: usize, name: &str) -> Parse {
        self.advance();
        if let Some(fields) = self.struct_fields(name) {
            return fields;
        }
        if self.is("(") {
            let call_at = self.at();
            self.advance();
            let args = self.args(")")?;
            return self.expand_global(call_at, name, args);
        }
        if RESERVED.contains(&name) {
            self.fault(at, format!("reserved identifier: {name}"));
        }
        Ok(self.ident(at, name))
    }

    /// `a.b.Name{…}` when the tokens after the first name say so.
    fn struct_fields(&mut self, first: &str) -> Option<Parse> {
        let mut name = first.to_owned();
        let mut ahead = self.next;
        loop {
            match &self.tokens[ahead].token {
                Token::Symbol("{") => break,
                Token::Symbol(".") => match self.tokens.get(ahead + 1).map(|t| &t.token) {
                    Some(Token::Ident(part)) => {
                        name.push('.');
                        name.push_str(part);
                        ahead += 2;
                    }
                    _ => return None,
                },
                _ => return None,
            }
        }
        let at = self.tokens[ahead].at;
        self.next = ahead;
        self.advance();
        Some(self.struct_body(at, &name))
    }

    fn struct_body(&mut self, at: usize, name: &str) -> Parse {
        let mut fields = Vec::new();
        while !self.is("}") {
            let optional = self.take("?");
            let field_at = self.at();
            let name: Arc<str> = match self.peek() {
                Token::Ident(name) => name.as_str().into(),
                _ => return Err(self.unexpected("IDENTIFIER")),
            };
            self.advance();
            self.expect(":")?;
            let value = self.expr()?;
            fields.push(Field {
                name,
                value,
                optional,
                at: field_at,
            });
            if !self.take(",") {
                break;
            }
        }
        self.expect("}")?;
        Ok(self.node(
            at,
            Kind::Struct {
                name: name.into(),
                fields,
            },
        ))
    }

    fn args(&mut self, close: &str) -> Parse<Vec<Expr>> {
        let mut args = Vec::new();
        if self.take(close) {
            return Ok(args);
        }
        loop {
            args.push(self.expr()?);
            if !self.take(",") {
                break;
            }
        }
        self.expect(close)?;
        Ok(args)
    }

    fn list(&mut self, at: usize) -> Parse {
        let mut items = Vec::new();
        while !self.is("]") {
            let optional = self.take("?");
            let value = self.expr()?;
            items.push(Item { value, optional });
            if !self.take(",") {
                break;
            }
        }
        self.expect("]")?;
        Ok(self.node(at, Kind::List { items }))
    }

    fn map(&mut self, at: usize) -> Parse {
        let mut entries = Vec::new();
        while !self.is("}") {
            let optional = self.take("?");
            let key = self.expr()?;
            self.expect(":")?;
            let value = self.expr()?;
            entries.push(Entry {
                key,
                value,
                optional,
            });
            if !self.take(",") {
                break;
            }
        }
        self.expect("}")?;
        Ok(self.node(at, Kind::Map { entries }))
    }

    /// What follows an operand: selections, calls and indexes.
    fn member(&mut self, mut operand: Expr) -> Parse {
        let depth = self.depth;
        loop {
            let at = self.at();
            if self.take(".") {
                let optional = self.take("?");
                let name_at = self.at();
                let Token::Ident(name) = self.peek().clone() else {
                    return Err(self.unexpected("IDENTIFIER"));
                };
                self.advance();
                self.deeper(1)?;
                if optional {
                    let field = self.constant(name_at, Value::String(name.into()));
                    operand = self.call(at, "_?._", vec![operand, field]);
                } else if self.is("(") {
                    let call_at = self.at();
                    self.advance();
                    let args = self.args(")")?;
                    operand = self.expand_member(call_at, operand, &name, args)?;
                } else {
                    operand = self.node(
                        at,
                        Kind::Select {
                            operand: Box::new(operand),
                            field: name.into(),
                            test: false,
                        },
                    );
                }
            } else if self.take("[") {
                self.deeper(1)?;
                let optional = self.take("?");
                let index = self.expr()?;
                self.expect("]")?;
                let function = if optional { "_[?_]" } else { "_[_]" };
                operand = self.call(at, function, vec![operand, index]);
            } else {
                self.depth = depth;
                return Ok(operand);
            }
        }
    }
}
