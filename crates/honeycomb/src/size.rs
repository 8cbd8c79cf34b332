//! Sizes and durations for people.

/// Parses `64KiB`, `1.5 GiB`, `128M`, `4096`. All units are binary.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let wrong = || format!("'{text}' is not a size, such as 4096, 64KiB or 1.5GiB");
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        other => return Err(format!("unknown unit '{other}': use B, KiB, MiB, GiB or TiB")),
    };
    let bytes = number * factor as f64;
    // 2^63 bytes exceed any address space.
    if bytes >= 9_223_372_036_854_775_808.0 {
        return Err(format!("the size '{text}' is too large"));
    }
    Ok(bytes as u64)
}

/// Formats a size for people.
pub fn show(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{value:.1} {}", units[unit]),
    }
}

/// Formats a duration for people.
pub fn duration(ms: i64) -> String {
    let seconds = ms as f64 / 1000.0;
    match seconds.abs() {
        s if s < 120.0 => format!("{seconds:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", seconds / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.1} days", seconds / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse("64KiB"), Ok(65536));
        assert_eq!(parse("1.5 g"), Ok(3 << 29));
        assert_eq!(parse("4096"), Ok(4096));
        assert!(parse("many").is_err() && parse("1 parsec").is_err() && parse("-1").is_err());
        assert!(parse("99999999TiB").is_err());
        assert_eq!(show(65536), "64.0 KiB");
        assert_eq!((duration(900), duration(86_400_000)), ("0.9 s".into(), "24.0 h".into()));
    }
}
