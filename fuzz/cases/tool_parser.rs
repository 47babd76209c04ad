//! Any text is an answer of any format, with calls or without, that is the same in pieces; never a
//! panic. The first byte chooses the format and how the text is split.

use pelton_parse::{
    Answer, REASONING_FORMATS, Reader, ReaderOptions, TOOL_FORMATS, Tool, Trust, read,
};

pub(crate) fn run(bytes: &[u8]) {
    let Some((&choice, text)) = bytes.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    for format in TOOL_FORMATS {
        let options = || ReaderOptions {
            reasoning: REASONING_FORMATS.get(usize::from(choice) % (REASONING_FORMATS.len() + 1)),
            starts_inside: choice & 16 != 0,
            tools: Some((*format, if choice & 32 == 0 { tools() } else { Vec::new() })),
            trust: if choice & 64 == 0 { Trust::Checked } else { Trust::Enforced },
        };
        let whole = read(options(), text);
        let mut reader = Reader::new(options());
        let mut pieces = Answer::default();
        let mut n_letters = usize::from(choice);
        for piece in text.split_inclusive(|_| {
            n_letters += 1;
            n_letters % (1 + usize::from(choice) % 5) == 0
        }) {
            reader.push(piece).iter().for_each(|delta| pieces.add(delta));
        }
        pieces.end(&reader.finish());
        assert_eq!(pieces, whole, "{format:?}");
    }
}

fn tools() -> Vec<Tool> {
    let schema = r#"{"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "note": {"type": ["string", "null"]},
        "code": {"type": "string", "pattern": "^A"}, "extra": {"type": "object"}}}"#;
    let schema = serde_json::from_str(schema).expect("JSON");
    vec![Tool::new("get_weather", schema), Tool::new("ping", serde_json::Value::Null)]
}
