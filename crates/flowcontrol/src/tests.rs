use serde_json::{Value, json};

use super::*;

fn control(shares: u32, response: Value) -> Arc<FlowControl> {
    let options = FlowOptions {
        enabled: true,
        max_reads: 1,
        max_writes: 1,
    };
    let control = FlowControl::new(options, FlowMetrics::default());
    let level = json!({"metadata": {"name": "l", "uid": "level-uid"}, "spec": {"type": "Limited",
        "limited": {"nominalConcurrencyShares": shares, "limitResponse": response}}});
    let schema = json!({"metadata": {"name": "s", "uid": "schema-uid"}, "spec": {
        "matchingPrecedence": 5, "priorityLevelConfiguration": {"name": "l"},
        "distinguisherMethod": {"type": "ByUser"},
        "rules": [{"subjects": [{"kind": "Group", "group": {"name": "*"}}],
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"],
                "clusterScope": true, "namespaces": ["*"]}]}]}});
    control.configure(&[schema], &[level]);
    Arc::new(control)
}

fn info() -> RequestInfo {
    RequestInfo {
        verb: "list".to_owned(),
        is_resource: true,
        version: "v1".to_owned(),
        resource: "pods".to_owned(),
        ..RequestInfo::default()
    }
}

const QUEUE: fn() -> Value =
    || json!({"type": "Queue", "queuing": {"queues": 1, "handSize": 1, "queueLengthLimit": 1}});

#[tokio::test]
async fn requests_wait_for_a_seat_and_give_up_in_time() {
    let control = control(1, QUEUE());
    let user = UserInfo::new("u", &[]);
    let first = control
        .enter(&user, &info(), None, || 0)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(first.schema_uid.as_ref().unwrap(), "schema-uid");
    assert_eq!(first.level_uid.as_ref().unwrap(), "level-uid");
    assert_eq!(first.level(), "l");
    let second = control.enter(&user, &info(), None, || 0).await.unwrap();
    // both seats are taken: the third waits, for the fourth there is no room
    let waiting = {
        let (control, user) = (Arc::clone(&control), user.clone());
        tokio::spawn(async move {
            control
                .enter(&user, &info(), None, || 0)
                .await
                .map(|s| s.is_some())
        })
    };
    tokio::task::yield_now().await;
    assert!(control.dump_requests(true).contains("l, s, 0, 0, u, "));
    let refused = control.enter(&user, &info(), None, || 0).await.unwrap_err();
    assert_eq!(
        (refused.code, refused.details.unwrap().retry_after_seconds),
        (429, 1)
    );
    drop(second);
    assert!(waiting.await.unwrap().unwrap());
    // nobody leaves: the wait is bounded
    let second = control.enter(&user, &info(), None, || 0).await.unwrap();
    let deadline = Instant::now() + Duration::from_millis(400);
    let late = control
        .enter(&user, &info(), Some(deadline), || 0)
        .await
        .unwrap_err();
    assert_eq!(late.code, 429);
    // a quarter of its time went, the rest is the caller's
    assert!(Instant::now() < deadline);
    drop((first, second));
    assert!(
        control
            .dump_levels()
            .contains("\nl, 0, true, false, 0, 0, 4, 1, 1, 0\n"),
        "{}",
        control.dump_levels()
    );
}

#[tokio::test]
async fn callers_that_go_away_leave_no_trace() {
    let control = control(1, QUEUE());
    let user = UserInfo::new("u", &[]);
    let seats = (
        control.enter(&user, &info(), None, || 0).await.unwrap(),
        control.enter(&user, &info(), None, || 0).await.unwrap(),
    );
    let asked = info();
    let gone = control.enter(&user, &asked, None, || 0);
    let gone = tokio::time::timeout(Duration::from_millis(50), gone).await;
    assert!(gone.is_err());
    assert!(control.state.lock().waiters.is_empty());
    drop(seats);
    assert!(control.state.lock().shown.is_empty());
    assert!(
        control
            .dump_queues()
            .lines()
            .nth(1)
            .unwrap()
            .starts_with("l, 0, 0, 0, 0, ")
    );
}

#[tokio::test]
async fn a_rejecting_level_refuses_at_once() {
    let control = control(1, json!({"type": "Reject"}));
    let user = UserInfo::new("u", &[]);
    let _seats = (
        control.enter(&user, &info(), None, || 0).await.unwrap(),
        control.enter(&user, &info(), None, || 0).await.unwrap(),
    );
    assert_eq!(
        control
            .enter(&user, &info(), None, || 0)
            .await
            .unwrap_err()
            .code,
        429
    );
    // what no schema matches is not held up
    let path = RequestInfo {
        path: "/x".to_owned(),
        verb: "get".to_owned(),
        ..RequestInfo::default()
    };
    assert!(
        control
            .enter(&user, &path, None, || 0)
            .await
            .unwrap()
            .is_none()
    );
}

#[test]
fn lists_take_seats_by_what_they_go_through() {
    let of = |objects: usize| width(&info(), || objects);
    assert_eq!([of(0), of(100), of(101), of(5000)], [1, 1, 2, 10]);
    let mut named = info();
    named.name = "p".to_owned();
    assert_eq!(width(&named, || 5000), 1);
    let get = RequestInfo {
        verb: "get".to_owned(),
        ..info()
    };
    assert_eq!(width(&get, || 5000), 1);
}
