use super::*;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[tokio::test(start_paused = true)]
async fn a_loop_that_panics_or_ends_is_started_again_with_growing_pauses() {
    let (cancel, runs) = (CancellationToken::new(), Arc::new(AtomicU32::new(0)));
    let (counted, began) = (runs.clone(), Instant::now());
    let mut tasks = Tasks::new("test", cancel.clone());
    tasks.keep("loop", move || {
        let run = counted.fetch_add(1, Ordering::Relaxed);
        async move {
            match run {
                0 | 1 => panic!("run {run}"),
                2 => {}
                _ => std::future::pending().await,
            }
        }
    });
    while runs.load(Ordering::Relaxed) < 4 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(began.elapsed().as_millis() / 100, 7, "100 + 200 + 400 ms");
    assert_eq!(panics("test", "loop"), 2);
    assert_eq!(restarts("test", "loop"), 3);
    let mut page = Registry::default();
    register_metrics(&mut page);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &page).unwrap();
    let line = "davit_task_panics_total{component=\"test\",task=\"loop\"} 2";
    assert!(text.contains(line), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_was_told_to_end_is_not_started_again() {
    let (cancel, runs) = (CancellationToken::new(), Arc::new(AtomicU32::new(0)));
    let (counted, told) = (runs.clone(), cancel.clone());
    let mut tasks = Tasks::new("test", cancel.clone());
    tasks.keep("told", move || {
        counted.fetch_add(1, Ordering::Relaxed);
        told.clone().cancelled_owned()
    });
    tokio::task::yield_now().await;
    cancel.cancel();
    tasks.end().await;
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    assert_eq!(restarts("test", "told"), 0);
}

#[tokio::test]
async fn what_cannot_be_made_anew_ends_its_component() {
    let mut tasks = Tasks::new("test", CancellationToken::new());
    tasks.once("work", async { panic!("a piece") });
    tasks.vital("server", async { panic!("no {}", "listener") });
    let ended = tasks.failed().await;
    assert_eq!(ended.to_string(), "test: task server panicked: no listener");
    let returned = Task::new("test", "returned", CancellationToken::new());
    let ended = returned.vital(async {}).await.unwrap_err();
    assert_eq!(ended.how, Ending::Returned);
    assert_eq!(panics("test", "server"), 1);
}

#[test]
fn a_piece_of_work_that_panics_is_counted_and_passed_over() {
    assert_eq!(guard("test", "piece", "a", || 1), Ok(1));
    let broken: Result<(), String> = guard("test", "piece", "b", || panic!("no {}", 2));
    assert_eq!(broken, Err("no 2".to_owned()));
    assert_eq!(panics("test", "piece"), 1);
}
