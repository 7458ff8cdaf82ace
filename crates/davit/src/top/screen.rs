//! What stands on the screen, and what keys do to it. Nothing here knows a terminal.

use super::model::{Moment, Sheet, SheetRow};
use crate::page::Paint;
use crate::plain::{printable, shortened};
use crate::table;
use std::cmp::Ordering;
use std::collections::HashMap;

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub(super) enum TopView {
    /// Devices with who holds them
    Devices,
    /// Pods with CPU, memory and devices
    Pods,
    /// Nodes with what is used and short
    Nodes,
}

const VIEWS: [TopView; 3] = [TopView::Devices, TopView::Pods, TopView::Nodes];

/// A key that means something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pressed {
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Tab,
    BackTab,
    Char(char),
    /// Ctrl-C, which is a key in raw mode.
    Interrupt,
}

/// What comes after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterKey {
    Stay,
    Quit,
}

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Bold,
    Selected,
    Alarm,
}

/// Blanks between columns.
const GAP: usize = 2;
/// A column is never narrower, unless its cells are.
const NARROWEST: usize = 4;
/// Lines around the rows: summary, views, titles, keys.
const AROUND: usize = 4;
/// No terminal is smaller, as far as drawing goes.
const SMALLEST: (usize, usize) = (20, AROUND + 1);
const KEYS: &str = "q quit   tab view   arrows move   s sort by next column   r reverse";

/// How a view is looked at.
#[derive(Debug, Clone, Copy, Default)]
struct Viewing {
    column: usize,
    reversed: bool,
    selected: usize,
    first: usize,
}

/// The screen.
pub(super) struct Screen {
    view: TopView,
    looks: HashMap<TopView, Viewing>,
    snapshot: Moment,
    /// Why it is not newer.
    fault: Option<String>,
    /// Rows that were on the screen last.
    page: usize,
}

impl Screen {
    pub(super) fn new(view: TopView, snapshot: Moment) -> Self {
        let mut screen = Self {
            view,
            looks: HashMap::new(),
            snapshot: Moment::default(),
            fault: None,
            page: 1,
        };
        screen.show(Ok(snapshot));
        screen
    }

    /// What was read, or why it could not be.
    pub(super) fn show(&mut self, read: Result<Moment, String>) {
        match read {
            Ok(snapshot) => {
                self.snapshot = snapshot;
                self.fault = None;
                for view in VIEWS {
                    self.sort(view);
                }
            }
            Err(why) => self.fault = Some(why),
        }
    }

    pub(super) fn press(&mut self, key: Pressed) -> AfterKey {
        let rows = table_of(&self.snapshot, self.view).rows.len();
        let columns = table_of(&self.snapshot, self.view).titles.len().max(1);
        let page = self.page;
        let look = self.looks.entry(self.view).or_default();
        match key {
            Pressed::Char('q' | 'Q') | Pressed::Interrupt => return AfterKey::Quit,
            Pressed::Tab => self.view = neighbour(self.view, 1),
            Pressed::BackTab => self.view = neighbour(self.view, VIEWS.len() - 1),
            Pressed::Up | Pressed::Char('k') => look.selected = look.selected.saturating_sub(1),
            Pressed::Down | Pressed::Char('j') => look.selected += 1,
            Pressed::PageUp => look.selected = look.selected.saturating_sub(page),
            Pressed::PageDown => look.selected += page,
            Pressed::Home => look.selected = 0,
            Pressed::End => look.selected = rows,
            Pressed::Right | Pressed::Char('s') => look.column = (look.column + 1) % columns,
            Pressed::Left => look.column = (look.column + columns - 1) % columns,
            Pressed::Char('r') => look.reversed = !look.reversed,
            Pressed::Char(_) => {}
        }
        look.selected = look.selected.min(rows.saturating_sub(1));
        self.sort(self.view);
        AfterKey::Stay
    }

    fn sort(&mut self, view: TopView) {
        let look = self.looks.get(&view).copied().unwrap_or_default();
        let rows = &mut table_of_mut(&mut self.snapshot, view).rows;
        rows.sort_by(|one, other| {
            let order = compare(one, other, look.column);
            let order = if look.reversed {
                order.reverse()
            } else {
                order
            };
            order.then_with(|| one.cells.cmp(&other.cells))
        });
    }

    /// All lines of a screen of this size, none wider, none more.
    pub(super) fn frame(&mut self, width: usize, height: usize) -> Vec<(Style, String)> {
        let (width, height) = (width.max(SMALLEST.0), height.max(SMALLEST.1));
        let page = height - AROUND;
        self.page = page;
        let table = table_of(&self.snapshot, self.view);
        let look = self.looks.entry(self.view).or_default();
        look.selected = look.selected.min(table.rows.len().saturating_sub(1));
        look.first = look
            .first
            .min(look.selected)
            .max((look.selected + 1).saturating_sub(page));
        let look = *look;
        let shown = &table.rows[look.first..(look.first + page).min(table.rows.len())];
        let widths = fitted(table, shown, width);
        let mut lines = vec![
            (
                Style::Bold,
                format!(
                    "davit top {}   {}",
                    self.snapshot.time, self.snapshot.summary
                ),
            ),
            (Style::Plain, self.views(look)),
            (Style::Bold, line(&table.titles, &widths)),
        ];
        for (number, row) in shown.iter().enumerate() {
            let style = match row.alarm {
                _ if look.first + number == look.selected => Style::Selected,
                true => Style::Alarm,
                false => Style::Plain,
            };
            let cells: Vec<&str> = row.cells.iter().map(String::as_str).collect();
            lines.push((style, line(&cells, &widths)));
        }
        if table.rows.is_empty() {
            lines.push((Style::Plain, "none".to_owned()));
        }
        lines.resize(height - 1, (Style::Plain, String::new()));
        let fault = self.fault.iter().chain(&self.snapshot.faults).next();
        lines.push(match fault {
            Some(fault) => (Style::Alarm, fault.clone()),
            None => (Style::Plain, KEYS.to_owned()),
        });
        for (_, text) in &mut lines {
            *text = printable(text).chars().take(width).collect();
        }
        lines
    }

    fn views(&self, look: Viewing) -> String {
        let table = table_of(&self.snapshot, self.view);
        let names = VIEWS.map(|view| match view == self.view {
            true => format!("[{view:?}]"),
            false => format!(" {view:?} "),
        });
        let by = table.titles.get(look.column).copied().unwrap_or_default();
        let order = if look.reversed {
            ", greatest first"
        } else {
            ""
        };
        let rows = table.rows.len();
        let at = (look.selected + 1).min(rows);
        format!("{}   {at} of {rows}, by {by}{order}", names.join(" "))
    }
}

fn neighbour(view: TopView, steps: usize) -> TopView {
    let at = VIEWS
        .iter()
        .position(|one| *one == view)
        .unwrap_or_default();
    VIEWS[(at + steps) % VIEWS.len()]
}

fn table_of(snapshot: &Moment, view: TopView) -> &Sheet {
    match view {
        TopView::Devices => &snapshot.devices,
        TopView::Pods => &snapshot.pods,
        TopView::Nodes => &snapshot.nodes,
    }
}

fn table_of_mut(snapshot: &mut Moment, view: TopView) -> &mut Sheet {
    match view {
        TopView::Devices => &mut snapshot.devices,
        TopView::Pods => &mut snapshot.pods,
        TopView::Nodes => &mut snapshot.nodes,
    }
}

/// Numbers as numbers, and after them what has none.
fn compare(one: &SheetRow, other: &SheetRow, column: usize) -> Ordering {
    match (one.numbers.get(&column), other.numbers.get(&column)) {
        (Some(a), Some(b)) => a.cmp(b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => one.cells.get(column).cmp(&other.cells.get(column)),
    }
}

/// Widths of columns with which a line fits: the widest gives until it does.
fn fitted(table: &Sheet, rows: &[SheetRow], width: usize) -> Vec<usize> {
    let mut widths: Vec<usize> = table.titles.iter().map(|title| title.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(&row.cells) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let gaps = GAP * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > width {
        match widths.iter_mut().max() {
            Some(widest) if *widest > NARROWEST => *widest -= 1,
            _ => break,
        }
    }
    widths
}

fn line(cells: &[&str], widths: &[usize]) -> String {
    let fit = |(cell, width): (&&str, &usize)| {
        let cell = shortened(cell, *width);
        let blanks = width - cell.chars().count() + GAP;
        format!("{cell}{}", " ".repeat(blanks))
    };
    let text: String = cells.iter().zip(widths).map(fit).collect();
    text.trim_end().to_owned()
}

/// Everything as text.
pub(super) fn plain(snapshot: &Moment, paint: Paint) -> String {
    let mut out = format!("{}\n", snapshot.summary);
    for view in VIEWS {
        let shown = table_of(snapshot, view);
        let mut rows: Vec<_> = shown.rows.iter().map(|row| row.cells.clone()).collect();
        rows.sort();
        out.push('\n');
        out.push_str(&if rows.is_empty() {
            format!("No {}.\n", format!("{view:?}").to_lowercase())
        } else {
            table::painted(&shown.titles, &rows, paint)
        });
    }
    for fault in &snapshot.faults {
        out.push_str(&printable(fault));
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str], numbers: &[(usize, i64)]) -> SheetRow {
        SheetRow {
            cells: cells.iter().map(|cell| (*cell).to_owned()).collect(),
            numbers: numbers.iter().copied().collect(),
            alarm: cells.contains(&"broken"),
        }
    }

    fn snapshot(devices: Vec<SheetRow>) -> Moment {
        Moment {
            time: "12:00:00Z".to_owned(),
            summary: "nodes 1/1".to_owned(),
            devices: Sheet {
                titles: vec!["NODE", "DEVICE", "NUMA"],
                rows: devices,
            },
            ..Moment::default()
        }
    }

    fn many() -> Moment {
        let rows = (0..100).map(|n| row(&["node", &format!("gpu-{n:03}"), "-"], &[(2, -n)]));
        snapshot(rows.collect())
    }

    #[test]
    fn every_frame_fits_whatever_the_size() {
        let long = "x".repeat(300);
        let mut screen = Screen::new(
            TopView::Devices,
            snapshot(vec![row(&[&long, &long, "broken"], &[])]),
        );
        for (width, height) in [(80, 24), (200, 50), (20, 5), (1, 1), (37, 6)] {
            let frame = screen.frame(width, height);
            assert_eq!(frame.len(), height.max(SMALLEST.1));
            let widest = frame
                .iter()
                .map(|(_, text)| text.chars().count())
                .max()
                .unwrap();
            assert!(
                widest <= width.max(SMALLEST.0),
                "{width}x{height}: {widest}"
            );
        }
        let frame = screen.frame(80, 24);
        assert!(
            frame[3].1.contains('…') && frame[3].1.ends_with("broken"),
            "{:?}",
            frame[3]
        );
    }

    #[test]
    fn the_selected_row_stays_on_the_screen() {
        let mut screen = Screen::new(TopView::Devices, many());
        screen.frame(80, 24);
        let selected = |screen: &mut Screen| {
            let frame = screen.frame(80, 24);
            let found = frame.iter().find(|(style, _)| *style == Style::Selected);
            found.unwrap().1.clone()
        };
        assert!(selected(&mut screen).contains("gpu-000"));
        screen.press(Pressed::Down);
        screen.press(Pressed::PageDown);
        assert!(selected(&mut screen).contains("gpu-021"));
        screen.press(Pressed::End);
        assert!(selected(&mut screen).contains("gpu-099"));
        screen.press(Pressed::Down);
        screen.press(Pressed::PageUp);
        assert!(selected(&mut screen).contains("gpu-079"));
        // Fewer rows than before.
        screen.show(Ok(snapshot(vec![row(&["n", "only", "-"], &[])])));
        assert!(selected(&mut screen).contains("only"));
        screen.show(Ok(snapshot(Vec::new())));
        assert!(screen.frame(80, 24).iter().any(|(_, text)| text == "none"));
        screen.press(Pressed::Up);
    }

    #[test]
    fn keys_change_view_and_order() {
        let mut screen = Screen::new(TopView::Devices, many());
        screen.press(Pressed::Left);
        let first = |screen: &mut Screen| screen.frame(80, 24)[3].1.clone();
        // by NUMA, as a number
        assert!(first(&mut screen).contains("gpu-099"));
        screen.press(Pressed::Char('r'));
        assert!(first(&mut screen).contains("gpu-000"));
        assert!(
            screen.frame(80, 24)[1]
                .1
                .contains("[Devices]  Pods   Nodes    1 of 100, by NUMA, greatest first")
        );
        screen.press(Pressed::BackTab);
        assert!(screen.frame(80, 24)[1].1.contains("[Nodes]"));
        screen.press(Pressed::Tab);
        assert!(screen.frame(80, 24)[1].1.contains("[Devices]"));
        assert_eq!(screen.press(Pressed::Char('x')), AfterKey::Stay);
        assert_eq!(screen.press(Pressed::Char('q')), AfterKey::Quit);
        assert_eq!(screen.press(Pressed::Interrupt), AfterKey::Quit);
    }

    #[test]
    fn faults_stand_in_the_last_line_until_all_is_well() {
        let mut screen = Screen::new(TopView::Devices, many());
        assert!(screen.frame(80, 24)[23].1.starts_with("q quit"));
        screen.show(Err("connection refused".to_owned()));
        let last = screen.frame(80, 24).pop().unwrap();
        assert_eq!(last, (Style::Alarm, "connection refused".to_owned()));
        assert!(screen.frame(80, 24)[3].1.contains("gpu-000"));
        screen.show(Ok(many()));
        assert!(screen.frame(80, 24)[23].1.starts_with("q quit"));
    }

    #[test]
    fn nothing_that_was_read_moves_the_cursor() {
        let evil = "\x1b[2J\u{9b}2Jx";
        let mut moment = snapshot(vec![row(&[evil, evil, evil], &[])]);
        moment.faults = vec![format!("no use of CPU and memory: {evil}")];
        let text = plain(&moment, Paint::NONE);
        assert!(!text.contains(['\x1b', '\u{9b}']), "{text:?}");
        let mut screen = Screen::new(TopView::Devices, moment);
        for read in [None, Some(Err(evil.to_owned()))] {
            read.into_iter().for_each(|read| screen.show(read));
            for (_, text) in screen.frame(80, 24) {
                assert!(!text.contains(['\x1b', '\u{9b}']), "{text:?}");
            }
        }
    }

    #[test]
    fn as_text_it_has_all_and_no_escape_codes() {
        let text = plain(&many(), Paint::NONE);
        assert!(
            text.starts_with("nodes 1/1\n\nNODE   DEVICE    NUMA\nnode   gpu-000   -\n"),
            "{text}"
        );
        assert!(text.ends_with("\nNo pods.\n\nNo nodes.\n"), "{text}");
        assert!(!text.contains('\x1b'));
    }
}
