//! State of the screen, changed by news of the server and by keys.

use std::time::Instant;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::view::{Engine, Named, View};

/// The table at the bottom.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Tab {
    Tenants,
    Models,
}

/// Everything that decides what is drawn.
#[derive(Debug)]
pub(super) struct Screen {
    pub(super) url: String,
    pub(super) has_colors: bool,
    /// The figures shown; `None` before the first answer.
    pub(super) view: Option<View>,
    /// Why the server is away, and since when.
    pub(super) away: Option<(String, Instant)>,
    pub(super) is_paused: bool,
    pub(super) tab: Tab,
    /// Number of the model whose engine is shown.
    model: usize,
    is_done: bool,
}

impl Screen {
    pub(super) fn new(url: &str, has_colors: bool) -> Self {
        Self {
            url: url.to_owned(),
            has_colors,
            view: None,
            away: None,
            is_paused: false,
            tab: Tab::Tenants,
            model: 0,
            is_done: false,
        }
    }

    /// The server has answered.
    pub(super) fn update(&mut self, view: View) {
        self.away = None;
        if !self.is_paused {
            self.view = Some(view);
        }
    }

    /// The server has not answered.
    pub(super) fn away(&mut self, why: &str, now: Instant) {
        let since = self.away.take().map_or(now, |(_, since)| since);
        self.away = Some((why.to_owned(), since));
    }

    /// A key was pressed.
    pub(super) fn press(&mut self, key: KeyEvent) {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => self.is_done = true,
            KeyCode::Char('q') | KeyCode::Esc => self.is_done = true,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Left | KeyCode::Right | KeyCode::Tab | KeyCode::BackTab => {
                self.tab = match self.tab {
                    Tab::Tenants => Tab::Models,
                    Tab::Models => Tab::Tenants,
                };
            }
            KeyCode::Down => self.model = (self.model + 1).min(self.n_engines().saturating_sub(1)),
            KeyCode::Up => self.model = self.model.saturating_sub(1),
            _ => {}
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    /// The model whose engine is shown.
    pub(super) fn engine(&self) -> Option<(&Named, &Engine)> {
        let place = self.model.min(self.n_engines().saturating_sub(1));
        self.engines().nth(place)
    }

    fn n_engines(&self) -> usize {
        self.engines().count()
    }

    fn engines(&self) -> impl Iterator<Item = (&Named, &Engine)> {
        let models = self.view.iter().flat_map(|view| &view.models);
        models.filter_map(|model| Some((model, model.engine.as_ref()?)))
    }
}
