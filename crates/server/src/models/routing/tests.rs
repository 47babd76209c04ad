//! Rules that fit, switch on and off, or make no sense.

use super::*;

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn auto(to: &str, when: Condition) -> AutoRule {
    AutoRule { to: to.to_owned(), when }
}

fn degrade(waiting_above: Option<usize>, headroom_below: Option<f64>) -> DegradeRule {
    let (from, to) = ("big".to_owned(), "small".to_owned());
    DegradeRule { from, to, waiting_above, headroom_below, when: Condition::default() }
}

fn request() -> Traits {
    Traits { characters: 100, turns: 2, is_chat: true, ..Traits::default() }
}

#[test]
fn a_condition_holds_where_all_that_it_states_does() {
    let all = Condition::default();
    let holds = |when: &Condition| when.holds(&request(), "red");
    assert!(holds(&all) && all.is_empty());
    for (when, expected) in [
        (Condition { min_characters: Some(100), ..all.clone() }, true),
        (Condition { min_characters: Some(101), ..all.clone() }, false),
        (Condition { max_characters: Some(100), ..all.clone() }, true),
        (Condition { max_characters: Some(99), ..all.clone() }, false),
        (Condition { min_turns: Some(2), ..all.clone() }, true),
        (Condition { min_turns: Some(3), ..all.clone() }, false),
        (Condition { max_turns: Some(2), ..all.clone() }, true),
        (Condition { max_turns: Some(1), ..all.clone() }, false),
        (Condition { tools: Some(false), ..all.clone() }, true),
        (Condition { tools: Some(true), ..all.clone() }, false),
        (Condition { tenants: names(&["blue", "red"]), ..all.clone() }, true),
        (Condition { tenants: names(&["blue"]), ..all.clone() }, false),
        (Condition { min_turns: Some(2), tools: Some(true), ..all.clone() }, false),
    ] {
        assert_eq!(holds(&when), expected, "{when:?}");
        assert!(!when.is_empty());
    }
}

#[test]
fn the_first_rule_that_fits_chooses_and_is_counted() {
    let long = Condition { min_characters: Some(50), ..Condition::default() };
    let tools = Condition { tools: Some(true), ..Condition::default() };
    let list = vec![auto("tools", tools), auto("long", long), auto("rest", Condition::default())];
    let rules = Rules::new(Routing { auto: list, degrade: Vec::new() });
    let choose = |request: &Traits| rules.choose(request, "red").expect("one takes all").to;
    assert_eq!(choose(&request()), "long");
    assert_eq!(choose(&Traits { has_tools: true, ..request() }), "tools");
    assert_eq!(choose(&Traits { characters: 3, ..request() }), "rest");
    assert_eq!(choose(&request()), "long");
    let counts: Vec<_> = rules.counts().into_iter().map(|(chosen, n)| (chosen.rule, n)).collect();
    let expected = [("auto[0]", 1), ("auto[1]", 2), ("auto[2]", 1)];
    assert_eq!(counts, expected.map(|(rule, n)| (rule.to_owned(), n)));
}

#[test]
fn a_load_switches_on_above_its_bound_and_off_well_below_it() {
    let load = |waiting, headroom| Load { waiting, headroom };
    let rule = degrade(Some(8), None);
    for (before, waiting, after) in
        [(false, 8, false), (false, 9, true), (true, 8, true), (true, 5, true), (true, 4, false)]
    {
        assert_eq!(rule.is_on(before, load(waiting, Some(-9.0))), after, "{before}, {waiting}");
    }
    let rule = degrade(None, Some(0.2));
    for (before, headroom, after) in [
        (false, None, false),
        (false, Some(0.2), false),
        (false, Some(0.19), true),
        (true, Some(0.29), true),
        (true, Some(0.31), false),
    ] {
        assert_eq!(rule.is_on(before, load(99, headroom)), after, "{before}, {headroom:?}");
    }
    // At a bound of 0, one waiting request is too many, and none is the end.
    let rule = degrade(Some(0), None);
    assert!(rule.is_on(false, load(1, None)) && rule.is_on(true, load(1, None)));
    assert!(!rule.is_on(true, load(0, None)));
}

#[test]
fn requests_move_while_the_load_lasts_and_where_another_model_can_answer() {
    let when = Condition { tenants: names(&["red"]), ..Condition::default() };
    let rule = DegradeRule { when, ..degrade(Some(4), None) };
    let rules = Rules::new(Routing { auto: Vec::new(), degrade: vec![rule] });
    let moves = |tenant: &str, waiting: usize, can: bool| {
        let load = || Load { waiting, headroom: None };
        let of = (&request(), tenant);
        rules.moves("big", of, load, |a, b| a == b, |_| can).map(|(chosen, _)| chosen.to)
    };
    let small = Some("small".to_owned());
    assert_eq!(moves("red", 4, true), None);
    // A request of another class is not moved, and its load is heard of.
    assert_eq!(moves("blue", 5, true), None);
    assert_eq!(moves("red", 3, true), small);
    assert_eq!(moves("red", 3, false), None, "the other model cannot");
    assert_eq!(moves("red", 2, true), None, "it ends at half");
    assert_eq!(moves("red", 3, true), None);
    let nobody = |_: &str| -> bool { panic!("no rule is of this model") };
    let never = || -> Load { panic!("no rule is of this model") };
    assert!(rules.moves("other", (&request(), "red"), never, |a, b| a == b, nobody).is_none());
}

#[test]
fn rules_that_make_no_sense_are_named() {
    let models = [names(&["big", "huge"]), names(&["small", "quick"])];
    let tenants = names(&["default", "red"]);
    let of_auto = |rules: Vec<AutoRule>| Routing { auto: rules, degrade: Vec::new() };
    let of_degrade = |rule: DegradeRule| Routing { auto: Vec::new(), degrade: vec![rule] };
    let all = Condition::default;
    let tools = || Condition { tools: Some(true), ..all() };
    let fine = Routing {
        auto: vec![auto("big", tools()), auto("quick", all())],
        degrade: vec![degrade(Some(0), Some(-1.0))],
    };
    assert_eq!(fine.check(&models, &tenants), Ok(()));
    let empty = Condition { min_turns: Some(3), max_turns: Some(2), ..all() };
    let stranger = Condition { tenants: names(&["green"]), ..all() };
    for (routing, parts) in [
        (
            of_auto(vec![auto("none", all())]),
            &["`auto[0]`", "`none`", "`big`, `huge`, `small`, `quick`"][..],
        ),
        (of_auto(vec![auto("big", tools())]), &["`auto[0]`", "last rule"]),
        (of_auto(vec![auto("big", all()), auto("small", all())]), &["`auto[0]`", "never apply"]),
        (of_auto(vec![auto("big", empty), auto("small", all())]), &["`min_turns`", "`max_turns`"]),
        (of_auto(vec![auto("big", stranger), auto("small", all())]), &["`green`", "`red`"]),
        (of_degrade(degrade(None, None)), &["`degrade[0]`", "`waiting_above`"]),
        (of_degrade(degrade(None, Some(f64::NAN))), &["`headroom_below`", "-1 to 1"]),
        (of_degrade(degrade(None, Some(7.0))), &["`headroom_below`", "-1 to 1"]),
        (of_degrade(DegradeRule { to: "big".to_owned(), ..degrade(Some(1), None) }), &["same"]),
        (of_degrade(DegradeRule { to: "huge".to_owned(), ..degrade(Some(1), None) }), &["same"]),
        (
            of_degrade(DegradeRule { from: "none".to_owned(), ..degrade(Some(1), None) }),
            &["`none`"],
        ),
    ] {
        let why = routing.check(&models, &tenants).expect_err("no sense").to_string();
        for part in parts {
            assert!(why.contains(part), "{part} is missing from: {why}");
        }
    }
    let why = of_auto(vec![auto("auto", all())]).check(&[names(&["auto"])], &tenants);
    assert!(why.expect_err("a model of that name").why.contains("`auto` itself"));
}

#[test]
fn all_texts_of_a_conversation_are_counted_and_nothing_else() {
    let parts = serde_json::json!([
        {"type": "text", "text": "caf\u{e9}"}, {"type": "image_url", "image_url": {"url": "data:..."}}
    ]);
    let with_parts =
        pelton_text::Message { content: parts, ..pelton_text::Message::new("user", "") };
    let messages = [
        pelton_text::Message::new("system", "be kind"),
        with_parts,
        pelton_text::Message::new("assistant", "yes"),
        pelton_text::Message::new("user", "go"),
    ];
    let expected =
        Traits { characters: 7 + 4 + 3 + 2, turns: 2, is_chat: true, ..Traits::default() };
    assert_eq!(Traits::of_messages(&messages), expected);
}
