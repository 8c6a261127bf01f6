"""Broker settings of Kafka 4.3 about security"""

ROWS = """\
allow.everyone.if.no.acl.found BOOLEAN false internal
    Whether an authorizer allows everybody what no ACL mentions.
authorizer.class.name STRING empty
    Java class that decides which client may do what.
connection.failed.authentication.delay.ms INT 100 0:
    Pause before a connection that failed to authenticate is closed.
connections.max.reauth.ms LONG 0
    Time after which a SASL connection must authenticate again; 0 is never.
delegation.token.expiry.check.interval.ms LONG 3600000 1:
    Time between two searches for expired delegation tokens.
delegation.token.expiry.time.ms LONG 86400000 1:
    Time after which a delegation token must be renewed.
delegation.token.max.lifetime.ms LONG 604800000 1:
    Time after which a delegation token cannot be renewed.
delegation.token.secret.key PASSWORD null
    Secret that delegation tokens are signed with.
early.start.listeners LIST null
    Listeners that open before the authorizer is ready.
listener.security.protocol.map STRING \
SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT per-broker
principal.builder.class CLASS \
org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder per-broker
    Java class that names the user of a connection.
sasl.client.callback.handler.class CLASS null
    Java class for SASL logins of this node.
sasl.enabled.mechanisms LIST GSSAPI per-broker
    SASL mechanisms that clients may use.
sasl.jaas.config PASSWORD null per-broker
    Logins of this node and of SASL listeners.
sasl.kerberos.kinit.cmd STRING /usr/bin/kinit per-broker
    Path of `kinit`.
sasl.kerberos.min.time.before.relogin LONG 60000 per-broker
    Shortest time between two Kerberos logins.
sasl.kerberos.principal.to.local.rules LIST DEFAULT per-broker
    Rules from Kerberos principals to user names.
sasl.kerberos.service.name STRING null per-broker
    Kerberos principal that brokers run as.
sasl.kerberos.ticket.renew.jitter DOUBLE 0.05 per-broker
    Random part of the time of renewal of Kerberos tickets.
sasl.kerberos.ticket.renew.window.factor DOUBLE 0.8 per-broker
    Part of its life after which a Kerberos ticket is renewed.
sasl.login.callback.handler.class CLASS null
    Java class that provides credentials for logins.
sasl.login.class CLASS null
    Java class that logs in.
sasl.login.connect.timeout.ms INT null
    Time to connect to an OAuth server.
sasl.login.read.timeout.ms INT null
    Time to read from an OAuth server.
sasl.login.refresh.buffer.seconds SHORT 300 per-broker
    Time before expiry at which a login must be renewed.
sasl.login.refresh.min.period.seconds SHORT 60 per-broker
    Shortest time before a login is renewed.
sasl.login.refresh.window.factor DOUBLE 0.8 per-broker
    Part of its life after which a login is renewed.
sasl.login.refresh.window.jitter DOUBLE 0.05 per-broker
    Random part of the time of renewal of a login.
sasl.login.retry.backoff.max.ms LONG 10000
    Longest pause before a login is tried again.
sasl.login.retry.backoff.ms LONG 100
    First pause before a login is tried again.
sasl.mechanism.controller.protocol STRING GSSAPI
    SASL mechanism to controllers.
sasl.mechanism.inter.broker.protocol STRING GSSAPI per-broker
    SASL mechanism between brokers.
sasl.oauthbearer.assertion.algorithm STRING RS256
    Algorithm that signs an OAuth assertion.
sasl.oauthbearer.assertion.claim.aud STRING null
    Audience of an OAuth assertion.
sasl.oauthbearer.assertion.claim.exp.seconds INT 300 0:86400
    Life of an OAuth assertion.
sasl.oauthbearer.assertion.claim.iss STRING null
    Issuer of an OAuth assertion.
sasl.oauthbearer.assertion.claim.jti.include BOOLEAN false
    Whether an OAuth assertion has an id.
sasl.oauthbearer.assertion.claim.nbf.seconds INT 60 0:3600
    Time before now from which an OAuth assertion is valid.
sasl.oauthbearer.assertion.claim.sub STRING null
    Subject of an OAuth assertion.
sasl.oauthbearer.assertion.file STRING null
    File of an OAuth assertion.
sasl.oauthbearer.assertion.private.key.file STRING null
    File of the key that signs OAuth assertions.
sasl.oauthbearer.assertion.private.key.passphrase PASSWORD null
    Passphrase of that key.
sasl.oauthbearer.assertion.template.file STRING null
    File of the claims of an OAuth assertion.
sasl.oauthbearer.client.credentials.client.id STRING null
    Client id at the OAuth server.
sasl.oauthbearer.client.credentials.client.secret PASSWORD null
    Client secret at the OAuth server.
sasl.oauthbearer.clock.skew.seconds INT 30
    Difference of clocks that is allowed for tokens.
sasl.oauthbearer.expected.audience LIST empty
    Audiences that a token may have.
sasl.oauthbearer.expected.issuer STRING null
    Issuer that a token must have.
sasl.oauthbearer.jwks.endpoint.refresh.ms LONG 3600000
    Time between two reads of the keys of tokens.
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms LONG 10000
    Longest pause before the keys are read again.
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms LONG 100
    First pause before the keys are read again.
sasl.oauthbearer.jwks.endpoint.url STRING null
    Address of the keys of tokens.
sasl.oauthbearer.jwt.retriever.class CLASS \
org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
    Java class that gets tokens.
sasl.oauthbearer.jwt.validator.class CLASS \
org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
    Java class that checks tokens.
sasl.oauthbearer.scope STRING null
    Scope to ask for at the OAuth server.
sasl.oauthbearer.scope.claim.name STRING scope
    Name of the claim with the scope.
sasl.oauthbearer.sub.claim.name STRING sub
    Name of the claim with the subject.
sasl.oauthbearer.token.endpoint.url STRING null
    Address at which tokens are had.
sasl.server.callback.handler.class CLASS null
    Java class that checks SASL credentials.
sasl.server.max.receive.size INT 524288
    Largest SASL message accepted before authentication.
security.inter.broker.protocol STRING PLAINTEXT PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL
    Security protocol between brokers.
security.providers STRING null
    Java classes that provide security algorithms.
ssl.allow.dn.changes BOOLEAN false
    Whether a new certificate may have another name.
ssl.allow.san.changes BOOLEAN false
    Whether a new certificate may have other host names.
ssl.cipher.suites LIST empty per-broker
    Cipher suites of TLS.
ssl.client.auth STRING none required|requested|none per-broker
    Whether clients must show a certificate.
ssl.enabled.protocols LIST TLSv1.2,TLSv1.3 per-broker
    Versions of TLS that are enabled.
ssl.endpoint.identification.algorithm STRING https per-broker
    How host names are checked against certificates.
ssl.engine.factory.class CLASS null per-broker
    Java class that makes TLS engines.
ssl.key.password PASSWORD null per-broker
    Password of the private key.
ssl.keymanager.algorithm STRING SunX509 per-broker
    Algorithm of Java's key manager.
ssl.keystore.certificate.chain PASSWORD null per-broker
    Certificate chain of this node, as PEM.
ssl.keystore.key PASSWORD null per-broker
    Private key of this node, as PEM.
ssl.keystore.location STRING null per-broker
    File of this node's key and certificate.
ssl.keystore.password PASSWORD null per-broker
    Password of the key store.
ssl.keystore.type STRING JKS per-broker
    Format of the key store.
ssl.principal.mapping.rules STRING DEFAULT
    Rules from names in certificates to user names.
ssl.protocol STRING TLSv1.3 per-broker
    Version of TLS.
ssl.provider STRING null per-broker
    Java provider of TLS.
ssl.secure.random.implementation STRING null per-broker
    Java source of random numbers.
ssl.trustmanager.algorithm STRING PKIX per-broker
    Algorithm of Java's trust manager.
ssl.truststore.certificates PASSWORD null per-broker
    Certificates that are trusted, as PEM.
ssl.truststore.location STRING null per-broker
    File of the certificates that are trusted.
ssl.truststore.password PASSWORD null per-broker
    Password of the trust store.
ssl.truststore.type STRING JKS per-broker
    Format of the trust store.
super.users STRING null internal
    Users that an authorizer lets do everything.
"""
