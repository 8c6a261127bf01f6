"""What tests have in common that run Spark in processes of their own."""

# A short run is over before the better compiler of the JVM pays, or a collector with threads of its
# own. Most of its time is the loading of Spark's classes, which need not be verified.
_JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
QUICK_JAVA = {"spark.driver.extraJavaOptions": " ".join(_JAVA_OPTIONS)}
QUICK_START = [word for name, value in QUICK_JAVA.items() for word in ("--conf", f"{name}={value}")]
