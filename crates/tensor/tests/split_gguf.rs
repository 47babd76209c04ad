//! Models in several files: whichever part is opened, all are checked and mapped.

use std::path::{Path, PathBuf};

use pelton_tensor::{DType, Gguf, GgufValue, GgufWriter, TensorSource};

const N_PARTS: usize = 3;

fn path_of(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("m-{number:05}-of-{N_PARTS:05}.gguf"))
}

/// Metadata and tensors of one part; `None` takes a key of the sound part away.
#[derive(Clone)]
struct Part {
    number: usize,
    metadata: Vec<(&'static str, Option<GgufValue>)>,
    tensors: Vec<&'static str>,
}

impl Part {
    fn sound(number: usize) -> Self {
        let mut metadata = vec![
            ("split.no", Some(GgufValue::U16(number as u16 - 1))),
            ("split.count", Some(GgufValue::U16(N_PARTS as u16))),
            ("split.tensors.count", Some(GgufValue::I32(4))),
        ];
        if number == 1 {
            metadata.push(("general.name", Some(GgufValue::String("m".into()))));
        }
        let tensors = [vec!["a"], vec!["b", "d"], vec!["c"]][number - 1].clone();
        Self { number, metadata, tensors }
    }

    fn with(mut self, key: &'static str, value: Option<GgufValue>) -> Self {
        self.metadata.retain(|(other, _)| *other != key);
        self.metadata.push((key, value));
        self
    }

    fn write(&self, folder: &Path) {
        let mut writer = GgufWriter::new();
        for (key, value) in &self.metadata {
            if let Some(value) = value {
                writer.metadata(*key, value.clone());
            }
        }
        for name in &self.tensors {
            writer.tensor(*name, DType::F32, &[3]);
        }
        let mut data = writer.create(&path_of(folder, self.number)).expect("created");
        for name in &self.tensors {
            data.tensor_data(&[name.as_bytes()[0]; 12]).expect("written");
        }
        data.finish().expect("written");
    }
}

fn sound_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("temp");
    (1..=N_PARTS).for_each(|number| Part::sound(number).write(folder.path()));
    folder
}

#[test]
fn any_part_opens_the_whole_model() {
    let folder = sound_folder();
    for number in 1..=N_PARTS {
        let gguf = Gguf::open(&path_of(folder.path(), number)).expect("sound");
        assert_eq!(gguf.names(), ["a", "b", "c", "d"]);
        for name in gguf.names() {
            let view = gguf.get(name).expect("a name it gave");
            assert_eq!((view.shape, view.data), (&[3][..], &[name.as_bytes()[0]; 12][..]));
        }
        assert_eq!(gguf.str("general.name").expect("text"), Some("m"));
        assert_eq!(gguf.origin(), path_of(folder.path(), 1));
        let files: Vec<&Path> = gguf.files().iter().map(|file| file.path()).collect();
        let expected: Vec<PathBuf> = (1..=N_PARTS).map(|n| path_of(folder.path(), n)).collect();
        assert_eq!(files, expected);
    }
}

#[test]
fn a_missing_part_is_named() {
    for missing in 1..=N_PARTS {
        let folder = sound_folder();
        std::fs::remove_file(path_of(folder.path(), missing)).expect("removed");
        let opened = if missing == 1 { 2 } else { 1 };
        let error = Gguf::open(&path_of(folder.path(), opened)).expect_err("a part is missing");
        let expected = format!("m-0000{missing}-of-00003.gguf: part {missing} of 3 is missing");
        assert!(error.to_string().ends_with(&expected), "{error}");
    }
}

#[test]
fn parts_that_do_not_belong_together_are_refused_by_file_and_field() {
    let sound = Part::sound;
    let text = |x: &str| Some(GgufValue::String(x.to_owned()));
    let u16 = |n| Some(GgufValue::U16(n));
    let cases: Vec<(&str, Part, &str)> = vec![
        (
            "another count",
            sound(2).with("split.count", u16(4)),
            "00002-of-00003.gguf: metadata key `split.count`: expected 3 as in the other parts, got 4",
        ),
        (
            "a whole model",
            sound(3).with("split.count", None),
            "00003-of-00003.gguf: metadata key `split.count`: expected 3 as in the other parts, got a whole model",
        ),
        (
            "a count of one",
            sound(3).with("split.count", u16(1)),
            "`split.count`: expected 3 as in the other parts, got a whole model",
        ),
        (
            "another number",
            sound(2).with("split.no", u16(2)),
            "00002-of-00003.gguf: metadata key `split.no`: expected 1, after the file's name, got 2",
        ),
        (
            "no number",
            sound(2).with("split.no", None),
            "`split.no`: expected the number of this part of 3, got nothing",
        ),
        (
            "a number beyond the last",
            sound(2).with("split.no", u16(3)),
            "`split.no`: expected an integer from 0 to 2, got 3",
        ),
        (
            "a negative number",
            sound(2).with("split.no", Some(GgufValue::I32(-1))),
            "`split.no`: expected an integer from 0 to 2, got -1",
        ),
        (
            "a number that is text",
            sound(2).with("split.no", text("1")),
            "`split.no`: expected an integer from 0 to 2, got string",
        ),
        (
            "another total",
            sound(2).with("split.tensors.count", Some(GgufValue::I32(5))),
            "`split.tensors.count`: expected 4 as in the other parts, got 5",
        ),
        (
            "no total",
            sound(2).with("split.tensors.count", None),
            "`split.tensors.count`: expected 4 as in the other parts, got nothing",
        ),
        (
            "another model's metadata",
            sound(2).with("general.name", text("n")),
            "00002-of-00003.gguf: metadata key `general.name`: expected what the first part says, got another model's value",
        ),
        (
            "metadata that the first lacks",
            sound(3).with("llama.block_count", u16(2)),
            "metadata key `llama.block_count`: expected what the first part says",
        ),
        (
            "a tensor twice",
            Part { tensors: vec!["a", "d"], ..sound(2) },
            "00002-of-00003.gguf: tensor `a`: expected one tensor of this name, got another in part 1",
        ),
        (
            "a tensor too few",
            Part { tensors: vec!["b"], ..sound(2) },
            "`split.tensors.count`: expected 4 tensors, got 3 in all parts",
        ),
        (
            "a tensor too many",
            Part { tensors: vec!["b", "d", "e"], ..sound(2) },
            "`split.tensors.count`: expected 4 tensors, got 5 in all parts",
        ),
    ];
    for (case, part, expected) in cases {
        let folder = sound_folder();
        part.write(folder.path());
        let error = Gguf::open(&path_of(folder.path(), 1)).expect_err(case).to_string();
        assert!(error.contains(expected), "{case}: {error}");
        // Opened itself, a file that says it is whole is whole, whatever its name.
        let is_whole = expected.ends_with("got a whole model");
        assert_eq!(Gguf::open(&path_of(folder.path(), part.number)).is_ok(), is_whole, "{case}");
    }
}

#[test]
fn the_opened_part_must_agree_with_its_own_name() {
    for (part, expected) in [
        (
            Part::sound(1).with("split.count", Some(GgufValue::U16(2))),
            "`split.count`: expected 3, after the file's name, got 2",
        ),
        (
            Part::sound(1).with("split.no", Some(GgufValue::U16(1))),
            "`split.no`: expected 0, after the file's name, got 1",
        ),
        (
            Part::sound(1).with("split.count", Some(GgufValue::U32(u32::MAX))),
            "`split.count`: expected an integer from 0 to 1024, got 4294967295",
        ),
        (
            Part::sound(1).with("split.count", Some(GgufValue::I64(-3))),
            "`split.count`: expected an integer from 0 to 1024, got -3",
        ),
        (
            Part::sound(1).with("split.tensors.count", Some(GgufValue::I64(-1))),
            "`split.tensors.count`: expected an integer",
        ),
    ] {
        let folder = sound_folder();
        part.write(folder.path());
        let error = Gguf::open(&path_of(folder.path(), 1)).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_part_under_another_name_says_what_the_name_should_be() {
    let folder = sound_folder();
    let renamed = folder.path().join("model.gguf");
    std::fs::rename(path_of(folder.path(), 1), &renamed).expect("renamed");
    let error = Gguf::open(&renamed).expect_err("no way to the others").to_string();
    assert!(
        error.contains("model.gguf: name: expected a name like `model-00001-of-00002.gguf`"),
        "{error}"
    );
}

#[test]
fn a_broken_part_is_refused_whichever_is_opened() {
    let folder = sound_folder();
    let broken = path_of(folder.path(), 2);
    let bytes = std::fs::read(&broken).expect("there");
    std::fs::write(&broken, &bytes[..bytes.len() - 40]).expect("cut");
    for opened in 1..=N_PARTS {
        let error = Gguf::open(&path_of(folder.path(), opened)).expect_err("cut").to_string();
        assert!(error.contains("m-00002-of-00003.gguf: tensor `d`, offset"), "{error}");
    }
}
