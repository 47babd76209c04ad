//! `pelton top`: a running server in the terminal.
//!
//! ```text
//!   GET /v1/live, once a second ──▶ Fetched ──▶ Screen ──▶ frames of ratatui
//!                                  keys ──────▶
//! ```
//!
//! A thread asks the server, so a server that hangs does not keep keys from being heard. While the
//! server is away the last figures stay on the screen, marked as old.

mod draw;
mod fetch;
mod plain;
mod screen;
mod view;

#[cfg(test)]
mod tests;

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};

use self::fetch::{Away, Client, Fetched};
use self::screen::Screen;
use crate::args::TopArgs;
use crate::failure::{Failure, Result};

/// Time between two questions to the server.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longest time for which a key waits to be heard.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// Runs the command.
pub(crate) fn top(args: &TopArgs) -> Result<()> {
    let client = Client::new(&args.url, args.key.as_ref(), args.ca.as_deref())?;
    if args.json {
        return print_json(&client, args.once);
    }
    if args.once {
        let text = plain::text(client.url(), &client.ask().map_err(Away::into_failure)?.view);
        return print(&text);
    }
    if !std::io::stdout().is_terminal() {
        return Err(Failure::new("`pelton top` draws on a terminal, and standard output is none")
            .hint("`--once` prints the figures of this moment, `--json` the server's JSON"));
    }
    // Refusals, which waiting does not mend, are said before the screen is taken.
    if let Err(away @ Away::Refused { .. }) = client.ask() {
        return Err(away.into_failure());
    }
    let mut screen = Screen::new(client.url(), std::env::var_os("NO_COLOR").is_none());
    let news = listen(client);
    let terminal_error = |error| Failure::internal(format!("the terminal failed: {error}"));
    let mut terminal = ratatui::try_init().map_err(terminal_error)?;
    let outcome = show(&mut terminal, &mut screen, &news);
    ratatui::restore();
    outcome.map_err(terminal_error)
}

/// Asks once a second, on a thread of its own, until nobody listens.
fn listen(client: Client) -> Receiver<std::result::Result<Fetched, Away>> {
    let (send, news) = channel();
    std::thread::spawn(move || {
        loop {
            let asked = Instant::now();
            if send.send(client.ask()).is_err() {
                return;
            }
            std::thread::sleep(INTERVAL.saturating_sub(asked.elapsed()));
        }
    });
    news
}

/// Draws until a key ends it.
fn show(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    news: &Receiver<std::result::Result<Fetched, Away>>,
) -> std::io::Result<()> {
    while !screen.is_done() {
        match news.try_recv() {
            Ok(Ok(fetched)) => screen.update(fetched.view),
            Ok(Err(away)) => screen.away(away.why(), Instant::now()),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        terminal.draw(|frame| draw::draw(frame, screen, Instant::now()))?;
        if !event::poll(KEY_WAIT)? {
            continue;
        }
        if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            screen.press(key);
        }
    }
    Ok(())
}

/// Prints what the server says, line by line.
fn print_json(client: &Client, once: bool) -> Result<()> {
    loop {
        let asked = Instant::now();
        let fetched = client.ask().map_err(Away::into_failure)?;
        print(&format!("{}\n", fetched.json))?;
        if once {
            return Ok(());
        }
        std::thread::sleep(INTERVAL.saturating_sub(asked.elapsed()));
    }
}

fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let printed = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    printed.map_err(|error| Failure::stdout(&error))
}
